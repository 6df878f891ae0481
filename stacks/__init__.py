"""The AWS stack (CDK only): one construct per capability, composed by `training_stack`."""
