"""Building of TensorRT engines: the plan of an engine, the program that builds it, and checks of graphs."""
