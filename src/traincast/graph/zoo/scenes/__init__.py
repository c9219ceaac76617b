"""Networks that find what is where in an image or a volume: detection and segmentation."""
