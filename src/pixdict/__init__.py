"""pixdict: a connector to the Pix key directory (DICT), built on the public names of batuta."""
