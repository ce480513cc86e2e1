"""All imports of private modules of Flower, which other versions may change."""
