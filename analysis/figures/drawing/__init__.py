"""What all figures share: begin with `style`; colours, labels, fonts and the catalogue of words have files of their
own."""
