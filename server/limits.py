"""Every limit of the server, each with its reason. Constants only: what an operator may change is in config.py."""

from __future__ import annotations

BODY_BYTES = 1 * 1024 * 1024
"""Default largest request body: ten times a 32k-token prompt, and about 10 ms of JSON parsing on the event loop."""

BODY_BYTES_MOST = 8 * 1024 * 1024
"""Most that BODY_BYTES may be set to: the prompt must fit one engine message of 16 MiB with room to spare."""

BODY_SECONDS = 30.0
"""Default time for a body to arrive: a phone on a bad line manages, a trickling attacker is dropped."""

WRITE_SECONDS = 30.0
"""Default time one chunk may wait for a client that does not read; after that the connection is given up."""

OPEN_REQUESTS = 512
"""Default number of completions in progress: the engine's queue and batch, plus those that are being answered."""

HEAD_SECONDS = 5.0
"""Time for a request's head to be complete, from its first byte, or from when its connection was opened."""

KEEP_ALIVE_SECONDS = 15
"""Time for the next request on an open connection: longer than clients wait (Python's 5 s), so that it is they who
close, and none finds it closed under a request that it has just sent."""

CONNECTIONS = 8192
"""Default number of open connections: five thousand idle ones, and room for those that come and go."""

MESSAGES = 2048
"""Messages in one conversation: far beyond any context, small enough to check in a millisecond."""

CONTENT_PARTS = 256
"""Text parts in one message: same reason."""

STOP_STRINGS = 16
"""Stop strings of one request: each is searched for at every token."""

STOP_CHARACTERS = 256
"""Length of a stop string: the engine holds back that much text while it may still match."""

SPOKEN_LOOP_TOKENS = 32
"""Tokens for which a spoken reply may say the same over and over, four times at least: ten seconds of speech."""

WRITTEN_LOOP_TOKENS = 256
"""The same for written answers, where a person may have asked for a hundred zeros."""

CHOICES = 8
"""Choices (`n`) of one request: each is a request in the engine, and one client must not fill its batch."""

TEMPERATURES: tuple[float, float] = (0, 2)
"""Lowest and highest temperature of chat sampling, as OpenAI has it."""

TOP_LOGPROBS = 20
"""Alternatives per token, as OpenAI has it."""

LOGIT_BIASES = 1024
"""Entries of logit_bias, as OpenAI has it: each is applied at every token."""

TOOLS = 128
"""Functions of one request, and calls in one message, as OpenAI has it."""

NAME_CHARACTERS = 256
"""Length of identifiers that a client sends (model, user, cache_salt)."""

OUTBOX_BYTES = 64 * 1024 * 1024
"""Bytes waiting for the engine's socket before new requests are refused: eight bodies of the largest size."""

LOOK_SECONDS = 10.0
"""How often an engine is looked after, and asked for a word; it answers between two steps."""

STALL_LOOKS = 18
"""Looks in a row that find nothing taken of what waits before the engine is given up, and another one started: three
minutes, as long as a step may take (below). One microphone fills the socket within seconds of one that is too long."""

SILENT_LOOKS = 30
"""The same for looks that have not heard a word of it: five minutes. A large model reads a prompt's piece on a weak CPU
in two or three, and a kernel that was not foreseen compiles in less than one; to take either for the end would be worse
than to wait. Looks are counted, not seconds: after the machine was suspended one comes at once."""

MESSAGES_PER_TURN = 64
"""Messages read from the engine before the event loop may do something else: 2 ms of text, 8 ms if all are clauses."""

RESTARTS = 5
"""Engine restarts within RESTART_WINDOW_SECONDS before the server gives up and reports itself unhealthy."""

RESTART_WINDOW_SECONDS = 60.0
"""See RESTARTS: a fault at every request is found in seconds; one fault an hour must never add up to giving up."""

RESTART_DELAY_SECONDS = 0.1
"""Wait before the first restart; it doubles with each restart in the window."""

RESTART_DELAY_MOST_SECONDS = 5.0
"""Longest wait before a restart."""

STOP_SECONDS = 15.0
"""From SIGTERM to the exit with the default drain: what those who stop servers wait before they kill them, and less."""

GOODBYE_SECONDS = 2.0
"""Of that, for answers and conversations that were just ended to reach their clients, all at the same time."""

HTTP_CLOSE_SECONDS = 1
"""Of that, for connections that are still open: nothing is said on them any more. uvicorn wants a whole number."""

ENGINE_STOP_SECONDS = 3.0
"""Of that, for the engine to leave before it is killed: longer than any step, and it has nothing to lose."""

EXIT_SECONDS = 1.0
"""Of that, for what has no limit of its own: uvicorn's pauses, the interpreter's end. 0.4 s on two busy cores."""

DRAIN_SECONDS = STOP_SECONDS - (GOODBYE_SECONDS + HTTP_CLOSE_SECONDS + ENGINE_STOP_SECONDS + EXIT_SECONDS)
"""Default time for answers to go on after SIGTERM: what the ending leaves of STOP_SECONDS."""

RETRY_AFTER_SECONDS = 1
"""What a refused client is told to wait: a restart takes about that long."""

AUDIO_BODY_BYTES = 25 * 1024 * 1024
"""Default largest upload of audio, as OpenAI has it: an hour of MP3, a quarter of an hour of 16 kHz WAV."""

AUDIO_BODY_SECONDS = 120.0
"""Default time for an upload to arrive: 25 MiB over a line of 2 Mbit/s."""

AUDIO_SECONDS = 1800.0
"""Default longest recording: at 48 kHz its decoder takes 700 MiB for seconds, and 55 MiB stay while it is heard."""

AUDIO_HELD_BYTES = 512 * 1024 * 1024
"""Default bytes of uploads and of decoded audio in the server at one time: twenty uploads of the largest size."""

AUDIO_DECODERS = 2
"""Default decoders at work at one time: each is a process, and takes a core while the engine wants it."""

VOICE_SAMPLE_BYTES = 10 * 1024 * 1024
"""Largest upload of a recording to make a voice of, as OpenAI has it: half a minute of anything is less."""

VOICE_NAME_CHARACTERS = 64
"""Length of a voice's name: it is said in lists and errors."""

FORM_PARTS = 64
"""Parts of an upload: OpenAI's has 13 parameters, some of which may be repeated."""

FORM_HEADERS = 8
"""Headers of one part: the standard knows three."""

FORM_HEADER_BYTES = 4096
"""One header of a part: the longest holds a name and a file name."""

FORM_FIELD_BYTES = 16 * 1024
"""Value of a part that is not the file: the longest is a prompt."""

DECODE_SECONDS = 120.0
"""Time for a decoder to turn an upload into samples: half an hour of MP3 took 28 s on two busy cores."""

SMALL_WAV_BYTES = 1024 * 1024
"""A WAV up to here is decoded in a thread: 30 ms of numpy against 400 ms to start a decoder."""

SPEECH_CHARACTERS = 100_000
"""Text of one speech request: two hours of sound, and half of what the engine lets wait."""

SPEEDS = (0.5, 2.0)
"""Slowest and fastest speech: beyond them the voices are no longer understood."""

INSTRUCTION_CHARACTERS = 2000
"""Length of what a voice is told of how to speak: more of it would make every reply's prompt longer."""

LARGEST_SEED = (1 << 32) - 1
"""Seed of a voice: what every random generator takes."""

VOICE_FRAME_BYTES = 64 * 1024
"""Largest message of a conversation's client: 680 ms of the widest audio, where 20 ms are usual."""

SOCKET_FRAME_BYTES = 2 * 1024 * 1024
"""Largest WebSocket message of all: above it the connection is closed with 1009 before anything is read of it."""

VOICE_FRAMES_PER_SECOND = 200
"""Messages a second from one client: audio in pieces of 10 ms, with acks and pings among them."""

VOICE_FRAMES_BURST = 600
"""Messages at once: what a network that stalled for three seconds lets through."""

VOICE_BYTES_PER_SECOND = 192 * 1024
"""Bytes a second from one client: PCM16 at 48 kHz, twice as fast as it is spoken."""

VOICE_BYTES_BURST = 512 * 1024
"""Bytes at once: five seconds of that."""

VOICE_AUDIO_RATE = 1.25
"""Seconds of audio a second: a client's clock may be off, or catch up after a stall."""

VOICE_AUDIO_BURST_SECONDS = 2.0
"""Audio at once: what piles up in a stall."""

REALTIME_FRAME_BYTES = 2 * 1024 * 1024
"""Largest message of an OpenAI client: half a minute of PCM16 at 24 kHz as base64; whole files occur."""

REALTIME_AUDIO_BURST_SECONDS = 120.0
"""Audio at once from one: who ends turns by itself sends a recording as fast as the line goes. The longest turn."""

REALTIME_BYTES_BURST = 8 * 1024 * 1024
"""Bytes at once from one: that much audio, with room for instructions and tools."""

REALTIME_FRAMES_BURST = 6500
"""Messages at once from one: that much audio in pieces of 20 ms."""

VOICE_HELLO_SECONDS = 5.0
"""Time for a client to say hello: it has nothing to wait for."""

VOICE_CLOSE_SECONDS = 2.0
"""Time for the last words to a client before its socket is closed over them."""

VOICE_WARNING_SECONDS = 60.0
"""How long before a conversation's time limit its client is told."""

VOICE_SESSIONS = 1024
"""Default number of conversations: three hundred that speak, and those that do not."""

VOICE_SESSIONS_PER_ADDRESS = 256
"""Default number of conversations from one address: an office behind one, or a carrier."""

VOICE_SESSION_SECONDS = 3600.0
"""Default length of a conversation."""

VOICE_IDLE_SECONDS = 600.0
"""Default time in which a client must say something: a ping will do."""

VOICE_RESUME_SECONDS = 30.0
"""Default time for which a conversation is kept without a connection: a lift, a tunnel, a change of networks."""

HISTORY_TOKENS = {"cpu": 2000, "gpu": 8000, "remote": 6000}
"""Tokens of a conversation that the chat model is shown if nobody says otherwise, by what it runs on: a CPU takes
seconds to read more, and another server's context is not known. Never more than half of the context."""

UNACKNOWLEDGED_MS = 30_000
"""Time that bytes may lie unacknowledged before the kernel gives a connection up: a peer that never reads is gone."""

REMOTE_CONNECT_SECONDS = 5.0
"""Time to reach another chat server: longer than any handshake, short enough for a person who waits."""

REMOTE_READ_SECONDS = 60.0
"""Time between two pieces of another server's answer: it may be loading a model."""

REMOTE_LINE_CHARACTERS = 1024 * 1024
"""Longest line, or tool call, of another server's answer."""

CLIENT_SECRETS = 2048
"""Client secrets at one time, before the oldest goes: two for each conversation there may be, 128 MiB at the worst."""

CLIENT_SECRET_SESSION_BYTES = 64 * 1024
"""JSON of the session that a client secret stands for: the longest instructions and some fifty tools."""

CLIENT_SECRET_SESSION_LEVELS = 32
"""Nesting of that JSON: a tool's schema has ten levels, and every reader after us may recurse."""

CLIENT_SECRET_SECONDS = (10, 7200)
"""Shortest and longest life of a client secret, as OpenAI has it."""

CLIENT_SECRET_USUAL_SECONDS = 600
"""Life of a client secret whose maker does not say, as OpenAI has it."""
