"""The control sockets: HTTP with JSON over unix sockets of the state folder, both ends."""
