"""The program of a block: the works that one rank runs, with every transform that decides them."""
