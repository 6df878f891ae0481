"""What ministack does otherwise than AWS, mended in process: one module per service, each seam asserted at start."""
