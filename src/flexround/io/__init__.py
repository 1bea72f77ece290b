"""Files: stores of arrays, downloads, what a killed job left."""
