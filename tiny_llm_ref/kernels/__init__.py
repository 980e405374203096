"""The operations that decide the speed, written for the machine: C++ on the CPU, Metal and CUDA on a GPU."""
