"""How job logs are read, one file per format; :data:`traincast.scheduling.joblogs.read.FORMATS` lists them."""
