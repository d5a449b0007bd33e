"""Inertial signals: what Triton serves of AirIMU, free of Triton."""
