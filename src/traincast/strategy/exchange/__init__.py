"""What ranks send one another beside the works of a block: gradients, sharded parameters, pipeline messages."""
