"""Memory of one rank: what it holds when, whether it fits, and what would make it fit."""
