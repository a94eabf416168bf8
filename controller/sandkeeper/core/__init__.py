"""The rules of Sandkeeper: pure values and functions, without I/O, clocks, randomness or async."""
