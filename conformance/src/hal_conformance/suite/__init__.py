"""The suite: one test for each case of each rule, the same for every backend."""
