"""Memory side: AXI4, prefetcher, beat FIFO, store unit."""
