"""What `livetables up` starts and watches over."""
