"""Estimates and checks of the disk, memory and time that an export or a server needs."""
