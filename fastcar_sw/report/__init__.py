"""What a demonstration shows: tables, pictures, one HTML page."""
