"""HTTP and WebSocket API in front of Triton: videos as durable jobs, worlds, microphones, IMU recordings."""
