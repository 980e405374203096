"""The operations that decide speed, written for the hardware: C++ on a CPU, Metal and CUDA on a GPU."""
