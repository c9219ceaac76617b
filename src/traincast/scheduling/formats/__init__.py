"""How job traces are read, one file per format; :data:`traincast.scheduling.traces.FORMATS` lists them."""
