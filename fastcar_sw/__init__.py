"""Software of FastCar: twin, quantizer, compiler."""
