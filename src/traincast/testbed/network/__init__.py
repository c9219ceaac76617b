"""Networks of the testbed, and the processes in them."""
