"""What a layer is made of on one device, before anybody asks how long it takes.

``pieces``, put together by ``block``.
"""
