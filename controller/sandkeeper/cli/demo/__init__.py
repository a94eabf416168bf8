"""The demonstration: a coordinator does its job on a real package while things are killed under it."""
