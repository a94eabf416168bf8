"""Composition: who owns a sandbox, how its commands are performed, and the Ray actors around it.

Ray is imported in `actor.py` and `supervisor.py` only, and nowhere else in the package.
"""
