"""The only room that speaks to the container engine."""
