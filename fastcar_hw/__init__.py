"""Parametrised Amaranth hardware of the FastCar accelerator."""
