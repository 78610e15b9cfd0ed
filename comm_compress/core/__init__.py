"""What every compressor is made of: its interface, the requests it yields, the bytes it sends, the state it keeps."""
