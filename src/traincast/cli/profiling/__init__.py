"""The verb profile: measure operators, collectives, events and the machine at hand."""
