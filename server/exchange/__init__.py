"""A true telephone call on one machine: baresip, a soft phone, rings voxlane through Asterisk, a telephone exchange.

packages ──▶ programs ──▶ asterisk ──▶ soft_phone ──▶ ring (`make phone`)
             call_sound ──▶ relay ──────┘

`packages` fetches both programs, `TelephoneExchange` runs Asterisk, `Phone` runs baresip. SIP and RTP are real on both
sides of Asterisk. Between the phone and the exchange lies a relay in this process. It is the phone's microphone, so a
test can speak at a moment of its choice, and it writes down every packet of sound with its time.

The clock of all times here is `time.monotonic()`, in seconds:

- A packet that the phone sends at a moment holds the 20 ms before that moment, as with a microphone.
- A packet that arrives at a moment plays from that moment on. A phone's jitter buffer would come on top.
- An arriving packet has the kernel's time, so a busy process does not spoil it.
"""
