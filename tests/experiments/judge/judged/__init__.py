"""Methods that are judged in tests, each as somebody would write it: three from papers, and cheats."""
