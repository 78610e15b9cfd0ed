"""Step times behind links, predicted from a calibration of the machine. Begin with `step_model`."""
