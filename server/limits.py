"""Every limit of the server, each with its reason. Constants only: an operator's settings are in config.py."""

from __future__ import annotations

BODY_BYTES = 1 * 1024 * 1024
"""Default largest request body: ten times a 32k-token prompt, and about 10 ms of JSON parsing on the event loop."""

BODY_BYTES_MOST = 8 * 1024 * 1024
"""Most that BODY_BYTES may be set to: the prompt must fit one engine message of 16 MiB with room to spare."""

BODY_SECONDS = 30.0
"""Default time for a body to arrive: enough for a phone on a bad line, too short for a trickling attacker."""

WRITE_SECONDS = 30.0
"""Default time that one chunk may wait for a client that does not read; then the connection is closed."""

OPEN_REQUESTS = 512
"""Default number of completions in progress: the engine's queue and batch, plus those being answered."""

HEAD_BYTES = 16 * 1024
"""A request's head, or one line of a chunked body: h11's own limit."""

SMALL_CHUNK_BYTES = 512
SMALL_CHUNKS = 512
SMALL_CHUNKS_PER_SECOND = 250.0
"""Chunks of a body below that size, at once and per second, on one connection: parsing one takes 20 µs, and a program
that uploads sound as it is spoken sends 50 a second. Larger chunks are limited by the size of the body."""

HEAD_SECONDS = 5.0
"""Time for a request's head to arrive, from its first byte or from the opening of its connection."""

KEEP_ALIVE_SECONDS = 15
"""Time for the next request on an open connection: longer than clients wait (Python's 5 s), so that the client closes
first and never sends a request on a connection that the server is closing."""

CONNECTIONS = 8192
"""Default number of open connections: five thousand idle ones, and room for short ones."""

CONNECTIONS_PER_ADDRESS = 1024
"""Default number of open HTTP connections from one address: twice the requests at one time, since a reverse proxy is
one address."""

HANDSHAKE_SECONDS = 5.0
"""Time for a TLS handshake, from the opening of its connection: as long as a head may take."""

HANDSHAKES_PER_ADDRESS = 8
"""TLS handshakes of one address that wait for their turn with those of others; more of it wait behind them. Each takes
about a millisecond of the event loop: 300 at once delay their own address by about a second, others by 60 ms."""

ACCEPTS_PER_TURN = 64
"""Connections that are accepted before other tasks run."""

ACCEPT_PAUSE_SECONDS = 1.0
"""Wait after a connection could not be accepted for want of descriptors, as asyncio has it."""

TLS_CLOSE_SECONDS = 2.0
"""Time for a peer to confirm the end of TLS; then the connection is closed without it."""

TLS_WRITE_BYTES = 64 * 1024
"""Bytes that may wait inside TLS before writing pauses: as many as asyncio lets wait in a plain connection."""

FORWARDED_HOPS = 16
"""Proxies that a forwarded address is followed through: more than any installation has, where a header may hold
thousands."""

WATCH_SECONDS = 1.0
"""How often certificates and keys are looked at for a change: a stat each, and a revoked key is out within seconds."""

KEYS = 1024
"""Keys in keys.file: each is a tenant with metrics of its own."""

KEY_FILE_BYTES = 1024 * 1024
"""Largest keys.file: a thousand keys with all their limits take half of it."""

LINGER_SECONDS = 2.0
"""Time for the rest of a body to pass that was answered unread: a connection closed under it may lose the answer."""

LINGER_REST_SECONDS = 0.02
"""Time between two reads of such a rest: each takes up to 256 KiB, so 12 MB a second pass and no gigabytes."""

ENDING_CONNECTIONS = 256
"""Connections that wait so at one time; more are closed at once."""

MESSAGES = 2048
"""Messages in one chat request: far beyond any context, few enough to check in a millisecond."""

CONTENT_PARTS = 256
"""Text parts in one message: far beyond any context, few enough to check in a millisecond."""

STOP_STRINGS = 16
"""Stop strings of one request: each is searched at every token."""

STOP_CHARACTERS = 256
"""Characters of a stop string: the engine holds back that much text while it may still match."""

SPOKEN_LOOP_TOKENS = 32
"""Tokens for which a spoken reply may repeat itself, at least four times: ten seconds of speech."""

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
"""Characters of an identifier that a client sends (model, user, cache_salt)."""

OUTBOX_BYTES = 64 * 1024 * 1024
"""Bytes waiting for the engine's socket before new requests are refused: eight bodies of the largest size."""

LOOK_SECONDS = 10.0
"""How often the engine is checked and pinged; it answers between two steps."""

STALL_LOOKS = 18
"""Checks in a row in which the engine has read nothing of a full outbox, after which it is replaced: three minutes, as
long as a step may take (see SILENT_LOOKS). During a longer step one microphone fills the socket within seconds."""

SILENT_LOOKS = 30
"""Checks in a row in which the engine has sent nothing, after which it is replaced: five minutes. A large model takes
two or three for a prefill chunk on a weak CPU, and an unforeseen kernel compiles in less than one; to replace a working
engine is worse than to wait. Checks are counted, not seconds: after the machine was suspended one comes at once."""

MESSAGES_PER_TURN = 64
"""Messages read from the engine before other tasks run: 2 ms for text, 8 ms if all are clauses of sound."""

RESTARTS = 5
"""Engine restarts within RESTART_WINDOW_SECONDS before the engine is reported as failed; it is tried on and on."""

RESTART_WINDOW_SECONDS = 60.0
"""See RESTARTS: a fault at every request shows within seconds; one fault an hour must never add up."""

RESTART_DELAY_SECONDS = 0.05
"""Wait before the first restart; it doubles with each restart in the window."""

PROCESS_HUNG_SECONDS = 10
"""How long the event loop of a server process may stand still before its supervisor replaces it: the kernel goes on
giving it new connections."""

RESTART_DELAY_MOST_SECONDS = 2.0
"""Longest wait before a restart: an engine that is lost again and again still comes back within 5 s."""

FORK_READY_SECONDS = 20.0
"""Time for a fork of the template to become ready, which takes a tenth of a second on idle cores."""

FORK_SECONDS = 3.0
"""Time for a template to fork an engine, before the template is given up: 0.1 s, and a second on busy cores."""

FORKED_SECONDS = 0.5
"""How long a fork is expected to take until it is ready, before that was measured."""

LOST_FORKS = 3
"""Forks in a row that end before they are ready, after which their template is given up."""

LOAD_SECONDS = 15.0
"""How long an engine is expected to load before that was measured: 13 s on two idle cores."""

OVERDUE_SECONDS = 5
"""The wait in a refusal's Retry-After when the engine should have been back already."""

STOP_SECONDS = 15.0
"""From SIGTERM to the exit with the default drain: less than service managers wait before they kill a process."""

GOODBYE_SECONDS = 2.0
"""Part of STOP_SECONDS: the last messages of ended requests and conversations reach their clients, all in parallel."""

HTTP_CLOSE_SECONDS = 1
"""Part of STOP_SECONDS: open connections are closed; nothing is sent on them. uvicorn wants a whole number."""

LAST_FRAME_SECONDS = 0.7
"""Part of HTTP_CLOSE_SECONDS: the answer of a client to the close frame."""

ENGINE_STOP_SECONDS = 3.0
"""Part of STOP_SECONDS: the engine exits before it is killed; longer than any step, and it has no state to save."""

EXIT_SECONDS = 1.0
"""Part of STOP_SECONDS: everything without its own limit, as uvicorn's pauses and the interpreter's exit. 0.4 s on two
busy cores."""

DRAIN_SECONDS = STOP_SECONDS - (GOODBYE_SECONDS + HTTP_CLOSE_SECONDS + ENGINE_STOP_SECONDS + EXIT_SECONDS)
"""Default time for answers to go on after SIGTERM: the rest of STOP_SECONDS."""

RETRY_AFTER_SECONDS = 1
"""The wait in a refusal's Retry-After where nothing better is known."""

AUDIO_BODY_BYTES = 25 * 1024 * 1024
"""Default largest upload of audio, as OpenAI has it: an hour of MP3, a quarter of an hour of 16 kHz WAV."""

AUDIO_BODY_SECONDS = 120.0
"""Default time for an upload to arrive: 25 MiB over a line of 2 Mbit/s."""

AUDIO_SECONDS = 1800.0
"""Default longest recording: at 48 kHz its decoder takes 700 MiB for seconds, and 55 MiB stay during transcription."""

AUDIO_HELD_BYTES = 512 * 1024 * 1024
"""Default bytes of uploads and decoded audio in the server at one time: twenty uploads of the largest size."""

AUDIO_DECODERS = 2
"""Default number of decoders at one time: each is a process and competes with the engine for a core."""

VOICE_SAMPLE_BYTES = 10 * 1024 * 1024
"""Largest upload of a recording for a voice, as OpenAI has it: half a minute in any format is smaller."""

VOICE_NAME_CHARACTERS = 64
"""Characters of a voice's name: it appears in lists and errors."""

FORM_PARTS = 64
"""Parts of an upload: OpenAI's has 13 parameters, and some may be repeated."""

FORM_HEADERS = 8
"""Headers of one part: the standard knows three."""

FORM_HEADER_BYTES = 4096
"""One header of a part: the longest holds a name and a file name."""

FORM_FIELD_BYTES = 16 * 1024
"""Bytes of a part that is not the file: the longest is a prompt."""

DECODE_SECONDS = 120.0
"""Time for a decoder to decode an upload: half an hour of MP3 took 28 s on two busy cores."""

OPUS_SECONDS = 5.0
"""Time for a packet of a microphone to be decoded before the decoder is replaced."""

OPUS_START_SECONDS = 30.0
"""Time for the decoder to start, which reads its libraries from the disk."""

SMALL_WAV_BYTES = 1024 * 1024
"""A WAV up to this size is decoded in a thread: 30 ms of numpy against 400 ms to start a decoder process."""

SPEECH_CHARACTERS = 100_000
"""Characters of one speech request: two hours of sound, and half of what the engine lets wait."""

DIGIT_CHARACTERS = 6
"""A digit is said as a word: so many characters of text take as long. 20,000 digits would be three hours of sound."""

SPEECH_DIGITS = 1000
"""Digits that any text may have: five minutes of sound. Beyond them a sixth of the text may be digits."""

SPEEDS = (0.5, 2.0)
"""Slowest and fastest speech: outside of them voices are not intelligible."""

INSTRUCTION_CHARACTERS = 2000
"""Characters of a voice's speaking instructions: they lengthen the prompt of every reply."""

LARGEST_SEED = (1 << 32) - 1
"""Largest seed of a voice: every random generator takes it."""

VOICE_FRAME_BYTES = 64 * 1024
"""Largest message of a conversation's client: 680 ms of the widest audio, where 20 ms are usual."""

SOCKET_FRAME_BYTES = 2 * 1024 * 1024
"""Largest WebSocket message of any dialect: a larger one closes the connection with 1009 before it is read."""

VOICE_FRAMES_PER_SECOND = 200
"""Frames a second from one client: audio in pieces of 10 ms, with acks and pings among them."""

VOICE_FRAMES_BURST = 600
"""Frames at once: those of three seconds, after the network has stalled."""

FIRST_FRAMES = 16
"""Frames of a client that has not shown its key: one message, in pieces where a proxy cuts it."""

FRAGMENTS = 1024
"""Continuation frames of one message: the largest message in pieces of 2 KiB."""

FRAMES_PER_TURN = 32
"""Frames read from one WebSocket before other tasks run: half a millisecond."""

SOCKET_WRITE_SECONDS = 10.0
"""Time for which a WebSocket's client may leave a full buffer unread: more sound than any client keeps."""

VOICE_BYTES_PER_SECOND = 192 * 1024
"""Bytes a second from one client: PCM16 at 48 kHz, at twice real time."""

VOICE_BYTES_BURST = 512 * 1024
"""Bytes at once: five seconds of PCM16 at 48 kHz."""

VOICE_AUDIO_RATE = 1.25
"""Seconds of audio a second: a client's clock may be off, or catch up after a stall."""

VOICE_AUDIO_BURST_SECONDS = 2.0
"""Audio at once: as much as gathers during a stall."""

REALTIME_FRAME_BYTES = 2 * 1024 * 1024
"""Largest message of an OpenAI client: half a minute of PCM16 at 24 kHz as base64; whole files occur."""

REALTIME_AUDIO_BURST_SECONDS = 120.0
"""Audio at once from an OpenAI client: the longest turn. A client that ends turns itself may send a recording as fast
as the line goes."""

REALTIME_BYTES_BURST = 8 * 1024 * 1024
"""Bytes at once from an OpenAI client: that much audio, with room for instructions and tools."""

REALTIME_FRAMES_BURST = 6500
"""Messages at once from an OpenAI client: that much audio in pieces of 20 ms."""

VOICE_HELLO_SECONDS = 5.0
"""Time for a client to send its hello: it has nothing to wait for."""

VOICE_CLOSE_SECONDS = 2.0
"""Time to send the last messages to a client before its socket is closed."""

VOICE_WARNING_SECONDS = 60.0
"""How long before a conversation's time limit its client is told."""

VOICE_SESSIONS = 1024
"""Default number of conversations: three hundred that speak, and the silent ones."""

VOICE_SESSIONS_PER_ADDRESS = 256
"""Default number of conversations from one address: an office or a carrier may share one."""

SDP_BYTES = 64 * 1024
"""Bytes of a WebRTC offer: a browser's has 3 to 8 KiB."""

CALL_CONNECT_SECONDS = 20.0
"""Time from the answer to a WebRTC offer until the data channel is open."""

CALL_AUDIO_BURST_SECONDS = 5.0
"""Audio of a WebRTC track at once: what a network has held back."""

CALL_WAITING_MESSAGES = 1024
"""Messages and microphone frames of a WebRTC client that may wait to be processed: twenty seconds of frames."""

CALL_HELD_PARTS = 512
"""Parts of messages of a WebRTC client that may wait, as many again behind a lost one: more than twice the largest
message."""

CALL_HELD_BYTES = 1024 * 1024
"""Bytes of them, as many again behind a lost one: the window that the client is told."""

CALL_STREAMS = 64
"""Streams of a WebRTC client that have had data; clients use one."""

CALL_UNSENT_BYTES = 1024 * 1024
"""Bytes that may wait in a data channel before the next event waits, too."""

OPENS_PER_SECOND = 32.0
"""New conversations of one address a second, after a burst: a carrier begins fewer calls. An address that opens and
drops them as fast as it can makes so much garbage that collecting it held the event loop for 76 ms."""

FLOOD_PAUSE_SECONDS = 2.0
"""How long the next WebSockets of an address wait after one of it has sent too fast: one that comes back at once to
flood again costs next to nothing, and others behind the same address are only late."""

OPENING_ADDRESSES = 4096
"""Addresses whose rate is remembered."""

VOICE_SESSION_SECONDS = 3600.0
"""Default length of a conversation."""

VOICE_IDLE_SECONDS = 600.0
"""Default time in which a client must send something: a ping is enough."""

VOICE_RESUME_SECONDS = 30.0
"""Default time for which a conversation is kept without a connection: a lift, a tunnel, a change of networks."""

STORE_WAIT_SECONDS = 0.25
"""Default time that a message waits for the store of conversations: a pause that a person barely notices."""

STORE_LIVE_SECONDS = 90.0
"""How long a record outlives its server without a sign of life."""

STORE_TOUCH_SECONDS = 30.0
"""How often a record gets such a sign."""

STORE_PARKED_SECONDS = 15.0
"""How much longer than a conversation waits for its client its record is kept: clocks differ."""

STORE_RETRY_SECONDS = 1.0
"""Time between two attempts to write to a store that has failed."""

SILENCE_LOOK_SECONDS = 0.05
"""How often a drain looks for silences in which conversations can be handed over."""

HAND_OVER_LOOKS = 50
"""Looks over which a drain spreads the conversations that can be handed over at once: 2.5 s. All together would wait
for each other at the process that goes on with them."""

BALANCER_ASKS_SECONDS = 2.0
"""Time for a balancer to ask for the room, and to learn that this cell drains. Before that it would send the clients
that were handed over back here; after it, it is not waited for."""

CALL_FAREWELL_SECONDS = 8.0
"""How long before the end of a drain telephone calls begin to say good-bye."""

HISTORY_TOKENS = {"cpu": 2000, "gpu": 8000, "remote": 6000}
"""Default tokens of a conversation that the chat model is shown, by what it runs on: a CPU takes seconds to prefill
more, and the context of a remote server is not known. Never more than half of the context."""

UNACKNOWLEDGED_MS = 30_000
"""Time that bytes may stay unacknowledged before the kernel drops a connection: a peer that never reads is gone."""

REMOTE_CONNECT_SECONDS = 5.0
"""Time to connect to a remote chat server: longer than any handshake, and short for a waiting person."""

REMOTE_READ_SECONDS = 60.0
"""Time between two chunks of a remote server's answer: it may be loading a model."""

REMOTE_LINE_CHARACTERS = 1024 * 1024
"""Longest line or tool call in a remote server's answer."""

CLIENT_SECRETS = 2048
"""Client secrets at one time, before the oldest is dropped: two per possible conversation, 128 MiB at worst."""

CLIENT_SECRET_SESSION_BYTES = 64 * 1024
"""Bytes of a client secret's session as JSON: the longest instructions and some fifty tools."""

CLIENT_SECRET_SESSION_LEVELS = 32
"""Nesting of that JSON: a tool's schema has ten levels, and later readers may recurse."""

CLIENT_SECRET_SECONDS = (10, 7200)
"""Shortest and longest life of a client secret, as OpenAI has it."""

CLIENT_SECRET_USUAL_SECONDS = 600
"""Default life of a client secret, as OpenAI has it."""

LISTED_ITEMS = 100
"""Most input items of a response in one answer."""

RESPONSES_KEPT = 256
"""Responses of one key that `previous_response_id` can name, before the oldest is dropped: 64 MiB at worst."""

RESPONSE_KEPT_BYTES = 256 * 1024
"""Bytes of a kept response with all that went before it: four times what fits a context of 16,000 tokens."""

RESPONSES_KEPT_BYTES = 256 * 1024 * 1024
"""Bytes of the responses of all keys that a process keeps, before the oldest are dropped."""

RESPONSE_KEPT_SECONDS = 3600
"""How long a response is kept: longer than any pause within a conversation."""

METADATA_ENTRIES = 16
"""Entries of a response's metadata, as OpenAI has it."""

METADATA_CHARACTERS = (64, 512)
"""Characters of a key and of a value of metadata, as OpenAI has it."""

ROOM_STEP_SHARE = {"cpu": 0.95, "gpu": 1.6}
"""Share of the engine's step thread at which a server is full. On a CPU a busy thread is a full one. Beside a GPU it
batches more when it is always busy: 256 conversations were within their targets where 128 took 0.83 of it."""

ROOM_FIRST_SOUND_SECONDS = {"cpu": 4.0, "gpu": 1.0}
"""Mean time to the first sound of a reply at which a server is full: a person repeats the question. Two cores that
other work keeps busy take 1.2 s for one conversation; a GPU 0.3 s."""

ROOM_LAG_MS = 50.0
"""Default mean lag of the event loop at which a server is full: sound that comes every 20 ms is late by then."""

ROOM_BLOCKS_KEPT = 0.05
"""Default share of the KV blocks that is kept free of conversations: running ones grow."""

ROOM_KEPT_FOR_RESUMES = 0.1
"""Default share of the room that is kept for conversations which another process has lost."""

ROOM_SURE = 4
"""Default number of conversations that are admitted whatever is measured: two cores answered four at a time within
0.7 s (median), and a page that is opened again must not be refused."""

ROOM_RETRY_SECONDS = 5
"""The wait in the Retry-After of a full server: half of what the measured values are averaged over."""

AGENT_SPARE_CONNECTIONS = 64
"""Connections that a balancer may open beyond the conversations there is room for: HTTP requests, pages, resumes."""
