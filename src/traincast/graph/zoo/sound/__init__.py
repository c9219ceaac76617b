"""Networks on sound: speech to text, text to speech, classification."""
