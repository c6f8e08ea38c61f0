"""What people say to an assistant, for words.py: sixty turns, and turns with names that no recogniser expects."""

from __future__ import annotations

TURNS = (
    "Can you tell me what the weather will be like tomorrow morning?",
    "Please remind me to call my sister after lunch.",
    "I would like to book a table for four people on Friday evening.",
    "What is the fastest way to get from the airport to the hotel?",
    "Could you repeat the last part, please?",
    "Turn off the lights in the kitchen and close the garage door.",
    "How long does it take to boil an egg?",
    "My order has not arrived yet, and I need it before the weekend.",
    "Is there a pharmacy near the station that is open at night?",
    "Tell me a short story about a fox and a lighthouse.",
    "I forgot my password and cannot log into my account.",
    "What time does the museum close on Sundays?",
    "Let us move the meeting from Tuesday to Thursday afternoon.",
    "Who wrote the book that we talked about yesterday?",
    "Add milk, bread and two pounds of apples to my shopping list.",
    "Why does the sky turn red in the evening?",
    "Play something quiet while I finish this letter.",
    "The heating makes a strange noise when I turn it up.",
    "Could you explain how a bicycle stays upright?",
    "I am looking for a present for a boy who likes trains.",
    "Send a message to my brother that I will be late.",
    "How much does it cost to send a parcel to France?",
    "I had a sore throat last week, but now I feel better.",
    "Which of these two phones has the better camera?",
    "Please cancel the appointment with the dentist on Wednesday.",
    "What did the doctor say about the new medicine?",
    "We want to paint the bedroom in a light shade of green.",
    "Is it true that cats sleep more than half of the day?",
    "Show me the cheapest flights to Lisbon in the first week of May.",
    "I think the second answer was wrong, so try again.",
    "Where can I park the car if the garage is full?",
    "Read me the news, but leave out the sports.",
    "My grandmother used to bake this cake every winter.",
    "Does the train stop in the village, or do I have to change?",
    "Set a timer for twenty minutes and tell me when it is over.",
    "The printer says that it has no paper, but the tray is full.",
    "What would you do if you were in my place?",
    "Give me three good reasons to learn how to swim.",
    "I need a quiet room with a view of the garden.",
    "Can we talk about something else for a moment?",
    "How do I remove a coffee stain from a white shirt?",
    "They told me that the repair would take about ten days.",
    "Is the bank closed because of the holiday on Monday?",
    "Write down the address and the number of the house.",
    "I would rather walk than wait for the next bus.",
    "Which languages are spoken in Switzerland?",
    "The baby is asleep, so please speak softly.",
    "What is the difference between a frog and a toad?",
    "Tell my boss that the report will be ready by noon.",
    "I left my umbrella in the taxi this morning.",
    "How many people live in the smallest town of this county?",
    "Please spell that name for me once more.",
    "Should I water the tomatoes every day or only when it is hot?",
    "We missed the ferry, and the next one leaves at dawn.",
    "Can you find a recipe with rice, carrots and ginger?",
    "The door was open when I came home, and that worries me.",
    "What does the red lamp beside the switch mean?",
    "I want to change my ticket and pay the difference.",
    "Nobody answered the phone, although I called twice.",
    "Thank you, that was exactly what I needed.",
)
"""Without figures: their spelling differs between recognisers."""

NAMED = (
    ("Could you put me through to Doctor Okonkwo?", "Okonkwo"),
    ("I have a meeting with Siobhan in the afternoon.", "Siobhan"),
    ("Please book the flight to Reykjavik for me.", "Reykjavik"),
    ("How do I restart the Kubernetes cluster?", "Kubernetes"),
    ("My name is Thaddeus, and I lost my card.", "Thaddeus"),
    ("Ask Voxlane to read the last message.", "Voxlane"),
    ("Is there a pharmacy in Llandudno?", "Llandudno"),
    ("Tell Ngozi that I will be late.", "Ngozi"),
    ("I would like two bottles of Gewurztraminer.", "Gewurztraminer"),
    ("The invoice is from Brackenhurst Limited.", "Brackenhurst"),
    ("When does the office in Poughkeepsie open?", "Poughkeepsie"),
    ("Has Mister Wojcik paid for the repair?", "Wojcik"),
)
"""Turns with one name each, and the name."""

RECORDINGS = {
    "beckett.wav": "Ever tried. Ever failed. No matter. Try again. Fail again. Fail better.",
    "two_cities.wav": "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of"
    " foolishness, it was the epoch of belief, it was the epoch of incredulity, it was the season of light, it was the"
    " season of darkness, it was the spring of hope, it was the winter of despair, we had everything before us, we had"
    " nothing before us, we were all going direct to heaven, we were all going direct the other way. In short, the"
    " period was so far like the present period that some of its noisiest authorities insisted on its being received"
    " for good or for evil in the superlative degree of comparison only.",
}
"""What is said in the recordings of the catalog."""
