"""The tasks of the training programs: data, model, objective and evaluation of each."""
