"""Sandkeeper: durable owners for replaceable sandboxes."""
