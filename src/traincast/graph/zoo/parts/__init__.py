"""Parts that models of the zoo are made of: layers, kernels, stacks, pyramids."""
