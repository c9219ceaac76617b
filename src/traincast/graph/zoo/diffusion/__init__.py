"""Networks that remove noise, from which images and films are made."""
