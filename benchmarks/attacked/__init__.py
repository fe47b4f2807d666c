"""Apps with other limiters, to be attacked. Each is set up as the first pages of its documentation show."""
