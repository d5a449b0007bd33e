"""Sockets of worlds, microphones and inertial sensors."""
