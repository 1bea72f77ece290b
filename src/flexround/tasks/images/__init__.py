"""ImageNet and any other ImageFolder: sections 4.1 and 4.2."""
