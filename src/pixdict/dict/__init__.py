"""What both sides of the directory speak: keys, entries, claims, policies, messages, signatures, problems."""
