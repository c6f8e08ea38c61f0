"""The tables of the readers: units, currencies, abbreviations, symbols, months, names. Data only.

Readings are words that a lexicon knows. No reading holds a digit, so that a voice's own number rules never apply.
"""

from __future__ import annotations

MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
MONTH_NUMBERS = {month[:3].lower(): number for number, month in enumerate(MONTHS, 1)} | {"sept": 9}

UNITS: dict[str, tuple[str, str]] = {
    "km": ("kilometer", "kilometers"), "m": ("meter", "meters"), "cm": ("centimeter", "centimeters"),
    "mm": ("millimeter", "millimeters"), "µm": ("micrometer", "micrometers"), "μm": ("micrometer", "micrometers"),
    "nm": ("nanometer", "nanometers"), "mi": ("mile", "miles"), "yd": ("yard", "yards"), "ft": ("foot", "feet"),
    "in.": ("inch", "inches"), "kg": ("kilogram", "kilograms"), "g": ("gram", "grams"),
    "mg": ("milligram", "milligrams"), "µg": ("microgram", "micrograms"), "μg": ("microgram", "micrograms"),
    "mcg": ("microgram", "micrograms"), "lb": ("pound", "pounds"), "lbs": ("pound", "pounds"),
    "oz": ("ounce", "ounces"), "l": ("liter", "liters"), "L": ("liter", "liters"), "ml": ("milliliter", "milliliters"),
    "mL": ("milliliter", "milliliters"), "cl": ("centiliter", "centiliters"), "gal": ("gallon", "gallons"),
    "tsp": ("teaspoon", "teaspoons"), "tbsp": ("tablespoon", "tablespoons"),
    "s": ("second", "seconds"), "sec": ("second", "seconds"), "secs": ("second", "seconds"),
    "ms": ("millisecond", "milliseconds"), "µs": ("microsecond", "microseconds"),
    "μs": ("microsecond", "microseconds"), "ns": ("nanosecond", "nanoseconds"), "min": ("minute", "minutes"),
    "mins": ("minute", "minutes"), "h": ("hour", "hours"), "hr": ("hour", "hours"), "hrs": ("hour", "hours"),
    "Hz": ("hertz", "hertz"), "kHz": ("kilohertz", "kilohertz"), "MHz": ("megahertz", "megahertz"),
    "GHz": ("gigahertz", "gigahertz"), "B": ("byte", "bytes"), "KB": ("kilobyte", "kilobytes"),
    "kB": ("kilobyte", "kilobytes"), "MB": ("megabyte", "megabytes"), "GB": ("gigabyte", "gigabytes"),
    "TB": ("terabyte", "terabytes"), "PB": ("petabyte", "petabytes"), "KiB": ("kibibyte", "kibibytes"),
    "MiB": ("mebibyte", "mebibytes"), "GiB": ("gibibyte", "gibibytes"),
    "kbps": ("kilobit per second", "kilobits per second"),
    "Mbps": ("megabit per second", "megabits per second"), "Gbps": ("gigabit per second", "gigabits per second"),
    "V": ("volt", "volts"), "mV": ("millivolt", "millivolts"), "W": ("watt", "watts"),
    "mW": ("milliwatt", "milliwatts"),
    "kW": ("kilowatt", "kilowatts"), "MW": ("megawatt", "megawatts"), "GW": ("gigawatt", "gigawatts"),
    "kWh": ("kilowatt hour", "kilowatt hours"), "Wh": ("watt hour", "watt hours"), "mA": ("milliamp", "milliamps"),
    "mAh": ("milliamp hour", "milliamp hours"), "kJ": ("kilojoule", "kilojoules"),
    "cal": ("calorie", "calories"), "kcal": ("kilocalorie", "kilocalories"), "Pa": ("pascal", "pascals"),
    "hPa": ("hectopascal", "hectopascals"), "kPa": ("kilopascal", "kilopascals"), "dB": ("decibel", "decibels"),
    "mph": ("mile per hour", "miles per hour"), "kph": ("kilometer per hour", "kilometers per hour"),
    "kmh": ("kilometer per hour", "kilometers per hour"), "fps": ("frame per second", "frames per second"),
    "rpm": ("revolution per minute", "revolutions per minute"),
    "px": ("pixel", "pixels"), "MP": ("megapixel", "megapixels"), "°C": ("degree Celsius", "degrees Celsius"),
    "°F": ("degree Fahrenheit", "degrees Fahrenheit"), "° C": ("degree Celsius", "degrees Celsius"),
    "° F": ("degree Fahrenheit", "degrees Fahrenheit"), "°": ("degree", "degrees"),
    "ºC": ("degree Celsius", "degrees Celsius"), "º": ("degree", "degrees"), "%": ("percent", "percent"),
    "mol": ("mole", "moles"), "tok": ("token", "tokens"),
}  # fmt: skip
"""Symbol after a number -> (for one, for more)."""

PER_READINGS = {"yr": "year", "mo": "month", "wk": "week", "m": "meter", "h": "hour", "s": "second", "req": "request"}

SCALES = {
    "k": "thousand", "K": "thousand", "m": "million", "M": "million", "mn": "million", "b": "billion", "B": "billion",
    "bn": "billion", "T": "trillion", "hundred": "hundred", "thousand": "thousand", "million": "million",
    "billion": "billion", "trillion": "trillion",
}  # fmt: skip

CURRENCIES: dict[str, tuple[str, str, str, str]] = {
    "$": ("dollar", "dollars", "cent", "cents"), "US$": ("US dollar", "US dollars", "cent", "cents"),
    "A$": ("Australian dollar", "Australian dollars", "cent", "cents"),
    "C$": ("Canadian dollar", "Canadian dollars", "cent", "cents"), "£": ("pound", "pounds", "penny", "pence"),
    "€": ("euro", "euros", "cent", "cents"), "¥": ("yen", "yen", "sen", "sen"),
    "₹": ("rupee", "rupees", "paisa", "paise"),
    "₩": ("won", "won", "jeon", "jeon"), "USD": ("US dollar", "US dollars", "cent", "cents"),
    "EUR": ("euro", "euros", "cent", "cents"), "GBP": ("British pound", "British pounds", "penny", "pence"),
    "JPY": ("Japanese yen", "Japanese yen", "sen", "sen"), "INR": ("Indian rupee", "Indian rupees", "paisa", "paise"),
    "CAD": ("Canadian dollar", "Canadian dollars", "cent", "cents"),
    "AUD": ("Australian dollar", "Australian dollars", "cent", "cents"),
    "CHF": ("Swiss franc", "Swiss francs", "centime", "centimes"),
    "CNY": ("Chinese yuan", "Chinese yuan", "fen", "fen"), "Fr.": ("franc", "francs", "centime", "centimes"),
}  # fmt: skip
"""Sign or code -> (one, more, one of the small coin, more of it)."""

TITLES = {
    "mr": "Mister", "mrs": "Missus", "ms": "Miz", "mx": "Mix", "dr": "Doctor", "prof": "Professor", "st": "Saint",
    "mt": "Mount", "ft": "Fort", "gen": "General", "gov": "Governor", "sen": "Senator", "rep": "Representative",
    "capt": "Captain", "lt": "Lieutenant", "col": "Colonel", "sgt": "Sergeant", "rev": "Reverend",
    "hon": "Honorable", "pres": "President", "maj": "Major", "adm": "Admiral", "fr": "Father",
}  # fmt: skip
"""Titles: abbreviations before a capitalised word."""

BARE_TITLES = {"Mr", "Mrs", "Ms", "Dr", "Prof", "St", "Mt"}
"""The titles that people also write without the full stop."""

ABBREVIATIONS = {
    "e.g": "for example", "eg": "for example", "i.e": "that is", "ie": "that is", "etc": "et cetera", "vs": "versus",
    "v": "versus", "cf": "compare", "approx": "approximately", "appt": "appointment", "apt": "apartment",
    "dept": "department", "est": "established", "govt": "government", "max": "maximum", "min": "minimum",
    "avg": "average", "temp": "temperature", "misc": "miscellaneous", "incl": "including", "excl": "excluding",
    "tel": "telephone", "ext": "extension", "jr": "Junior", "sr": "Senior", "inc": "Incorporated", "ltd": "Limited",
    "co": "Company", "corp": "Corporation", "bros": "Brothers", "assn": "Association", "univ": "University",
    "ave": "Avenue", "blvd": "Boulevard", "rd": "Road", "ln": "Lane", "hwy": "Highway", "st": "Street", "dr": "Drive",
    "bldg": "Building", "al": "al", "mon": "Monday", "tue": "Tuesday", "tues": "Tuesday", "wed": "Wednesday",
    "thu": "Thursday", "thur": "Thursday", "thurs": "Thursday", "fri": "Friday", "sat": "Saturday",
    "a.k.a": "also known as",
    "jan": "January", "feb": "February", "mar": "March", "apr": "April", "jun": "June", "jul": "July", "aug": "August",
    "sep": "September", "sept": "September", "oct": "October", "nov": "November", "dec": "December",
    "hr": "hour", "hrs": "hours", "mins": "minutes", "sec": "seconds", "ph.d": "PHD", "oz": "ounces", "lbs": "pounds",
    "ft": "feet", "ca": "circa", "mt": "Mount",
}  # fmt: skip
"""An abbreviation in lower case without its last full stop -> reading. Only words with a full stop are looked up."""

SENTENCE_WORDS = {
    "al",
    "co",
    "mar",
    "max",
    "min",
    "sat",
    "sec",
    "sun",
    "fri",
    "v",
    "temp",
    "est",
    "ext",
    "ie",
    "dec",
    "ft",
}
"""Abbreviations that are also words or names: by default their full stop ends a sentence."""

MAY_END_SENTENCE = {
    "etc", "jr", "sr", "inc", "ltd", "co", "corp", "bros", "ave", "blvd", "rd", "st", "hwy", "a.m", "p.m", "ph.d", "al",
}  # fmt: skip
"""Abbreviations that end a sentence if a capital follows."""

BARE_ABBREVIATIONS = {
    "vs": "versus",
    "etc": "et cetera",
    "approx": "approximately",
    "avg": "average",
    "aka": "also known as",
}
NUMBERED = {
    "no": "number", "nos": "numbers", "fig": "figure", "figs": "figures", "p": "page", "pp": "pages",
    "vol": "volume", "ch": "chapter", "sec": "section", "eq": "equation", "art": "article", "ver": "version",
    "apt": "apartment", "ste": "suite", "rm": "room", "ext": "extension",
}  # fmt: skip
"""Abbreviations with a full stop before a number."""

ROMAN_CUES = {
    "chapter", "part", "act", "scene", "section", "volume", "book", "article", "phase", "type", "class", "level",
    "stage", "grade", "appendix", "war", "bowl", "episode", "title", "step", "tier", "round", "table", "figure",
}  # fmt: skip
ROMAN_NAMES = {
    "henry", "louis", "elizabeth", "george", "edward", "charles", "william", "james", "richard", "john", "paul",
    "benedict", "pius", "napoleon", "catherine", "philip", "alexander", "nicholas", "leo", "frederick", "francis",
    "gregory", "innocent", "clement", "mary", "robert", "peter", "ramesses", "cleopatra", "ivan", "otto", "felipe",
}  # fmt: skip

SPELLED_AS_WORDS = {
    "JSON": "Jason", "YAML": "yammel", "GIF": "gif", "RAM": "ram", "ROM": "rom", "PIN": "pin",
    "LAN": "lan",
    "WAN": "wan", "SIM": "sim", "WIFI": "wifi", "ASAP": "A-sap", "CRUD": "crud", "REST": "rest", "GUI": "gooey",
    "JPEG": "jay-peg", "OK": "okay", "PhD": "PHD", "FIFA": "feefa", "UNESCO": "Unesco", "CUDA": "cooda",
    "LAMP": "lamp", "SWAT": "swat", "UNIX": "Unix", "BASIC": "basic", "CAPTCHA": "captcha",
}  # fmt: skip
"""Acronyms that people say as words but a lexicon would spell, and one that a lexicon would spell differently."""

SPELLED_AS_LETTERS = {"NAACP", "HTTPS", "ISBN", "UUID", "IEEE", "ICANN", "ETFS"}
"""Long acronyms with vowels that are spelled nevertheless."""

SYMBOLS = {
    "&": "and", "+": "plus", "=": "equals", "@": "at", "%": "percent", "×": "times", "÷": "divided by",
    "±": "plus or minus", "≈": "about", "≠": "is not equal to", "≤": "at most", "≥": "at least", "<": "less than",
    ">": "greater than", "→": "to", "⇒": "gives", "∞": "infinity", "√": "square root of", "°": "degrees",
    "§": "section", "¶": "paragraph", "²": "squared", "³": "cubed", "½": "one half", "⅓": "one third",
    "⅔": "two thirds", "¼": "one quarter", "¾": "three quarters", "⅛": "one eighth", "€": "euros", "£": "pounds",
    "−": "minus", "℃": "degrees Celsius", "℉": "degrees Fahrenheit", "№": "number", "∑": "sum of", "∆": "delta",
}  # fmt: skip

GREEK = {
    "α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "epsilon", "θ": "theta", "λ": "lambda", "μ": "mu",
    "µ": "micro", "π": "pi", "ρ": "rho", "σ": "sigma", "τ": "tau", "φ": "phi", "ω": "omega", "Δ": "delta",
    "Σ": "sigma", "Ω": "omega",
}  # fmt: skip

COUNTED = {"people", "men", "women", "children", "tokens", "percent"}
NOT_PLURALS = {
    "is", "was", "has", "as", "its", "this", "us", "always", "across", "does", "versus", "plus", "unless", "perhaps",
    "sometimes", "afterwards", "besides", "regardless", "less", "thus", "yes", "towards", "connects", "works", "gives",
    "gets", "means", "says", "comes", "stands", "starts", "ends", "puts", "takes", "reaches", "answers", "rings",
}  # fmt: skip

STREETS = (
    "Street", "St", "Road", "Rd", "Avenue", "Ave", "Lane", "Ln", "Drive", "Dr", "Boulevard", "Blvd", "Terrace", "Court",
    "Ct", "Place", "Pl", "Square", "Sq", "Way", "Highway", "Hwy", "Close", "Crescent", "Gardens", "Row", "Mews",
    "Parkway", "Pkwy", "Straße", "Strasse", "Quay", "Hill",
)  # fmt: skip
"""The last words of the names of streets."""

BARE_STREETS = {
    "St": "Street", "Rd": "Road", "Ave": "Avenue", "Ln": "Lane", "Blvd": "Boulevard", "Hwy": "Highway",
    "Pkwy": "Parkway", "Sq": "Square",
}  # fmt: skip
"""The abbreviated ones that people write without a full stop."""

VERSIONED = {
    "version", "versions", "python", "node", "java", "ubuntu", "debian", "ios", "ipados", "macos", "android", "php",
    "ruby", "go", "rust", "perl", "django", "postgres", "postgresql", "mysql", "kubernetes", "kernel", "firefox",
    "chrome", "release",
}  # fmt: skip
"""Words before a version: "Python 3.12" is three point twelve."""
