"""Correction of inertial signals with AirIMU: requests and programs, independent of Triton."""
