"""What people say in the measurement of pauses: whole turns, each with the place where the speaker stops to think."""

from __future__ import annotations

PAUSED = tuple(
    line.strip()
    for line in """
    I'd like to book a table for | four people tomorrow evening.
    Could you remind me to call | my sister when I get home?
    What would you recommend for | a rainy Sunday afternoon with two small children?
    I was wondering whether | you could explain how a heat pump works.
    My daughter is looking for a | used bicycle that isn't too heavy.
    The thing I don't understand is | why the light stays on all night.
    Can you tell me how long it takes to | drive from Berlin to Prague?
    If it rains tomorrow, | should I still water the tomatoes?
    I moved to Lisbon in March and | I'm still looking for a good doctor.
    Please add milk, eggs and | a loaf of dark bread to the list.
    Before we start, | I need to tell you something about my schedule.
    He said he would arrive at | half past seven, but I don't believe him.
    Do you know anybody who | repairs old record players?
    I think the best way to | learn a language is to speak it every day.
    When I was a child, | we used to spend every summer at the lake.
    Send a message to Robert that | I'll be twenty minutes late.
    What's the difference between | a violin and a viola?
    The doctor told me to take these pills with | plenty of water after every meal.
    I want to paint the kitchen in | a warm yellow, or maybe light green.
    Is there any way to | turn off the notifications during the night?
    My account number is | four seven one one, and the name is Miller.
    We have about | three hundred guests and only two waiters.
    Although I like the house, | the garden is much too small for us.
    Let's say I have | two thousand euros and want to save for a trip.
    Could we move the meeting from Tuesday to | Thursday morning at ten?
    I tried restarting the router, but | the connection still drops every hour.
    The reason I'm calling is that | my parcel never arrived.
    How many calories are in | a bowl of oatmeal with honey?
    Tell me a story about a | dragon who is afraid of fire.
    I'd rather have | the window seat if that's still possible.
    Because of the strike, | all the trains are running late today.
    Who was the first person to | climb the north face of the Eiger?
    My grandmother always puts | a little cinnamon into her tomato sauce.
    I need a present for my | brother's birthday next Saturday.
    Are you able to | read out the last message from Anna?
    What I really want is | a quiet place where I can work.
    She asked me if | I could look after her cat for a week.
    There's a strange noise coming from | the washing machine every time it spins.
    I'm allergic to nuts, so | please choose something without them.
    Could you speak a bit | more slowly, please?
    Once the cake is in the oven, | how long do I have to wait?
    The password must contain at least | eight characters and one number.
    Please find a flight to | Copenhagen that leaves after six in the evening.
    I have a question about the | second chapter of the manual.
    He works as a | carpenter in a village near the border.
    We went to the market and | bought far too many strawberries.
    Turn the lights in the living room to | about fifty percent.
    Do I need a visa for | a short business trip to Turkey?
    I've been thinking about | selling the car and buying a cargo bike.
    It's not that I don't like him, | it's just that he talks too much.
    My flight was cancelled, | and now I need a hotel for tonight.
    Which of these two phones has | the better camera for dark rooms?
    I lost my keys somewhere between | the station and the office.
    Set an alarm for | a quarter to six tomorrow morning.
    I would say that | nobody really knows what happened that night.
    The neighbours are having | a party again, and it's past midnight.
    I read the book | twice and still didn't understand the ending.
    We could meet on Friday | after work, or on Saturday around noon.
    I called them yesterday | about the broken heater, but nobody answered.
    She lives in Toronto | with her husband and three dogs.
    """.strip().splitlines()
)
"""Sixty turns; `|` is the place of the pause. At the last four the words so far are a sentence by themselves."""

SHORT = tuple(
    line.strip()
    for line in """
    What is the capital of France?
    Yes, please.
    No, thank you.
    Tomorrow at nine.
    My name is Peter.
    Can you help me?
    That's all for today.
    What time is it?
    Twelve times eight.
    I'm fine, thanks.
    Tell me a joke.
    Where did I leave my glasses?
    Good morning.
    How are you today?
    I don't know.
    The blue one.
    About twenty minutes.
    Play some jazz.
    Could you repeat that?
    It's raining again.
    In Hamburg.
    Who wrote Faust?
    I need a plumber.
    What's the weather like in Rome?
    Because I was tired.
    Two adults and a child.
    Call my mother.
    I think so.
    How far is the moon?
    Let's talk about something else.
    """.strip().splitlines()
)
"""Thirty short turns without a pause."""


def whole(paused: str) -> str:
    """Return a turn without its mark."""
    return " ".join(paused.replace("|", " ").split())


def halves(paused: str) -> tuple[str, str]:
    """Return the words before and after the mark."""
    first, _, second = paused.partition("|")
    return first.strip(), second.strip()
