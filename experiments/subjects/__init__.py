"""What experiments are tried on: measured kernels and spaces, functions, planted bugs, made-up trees and runs."""
