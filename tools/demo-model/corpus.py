"""The demo model's corpus: every sentence comes from the grammar below, which we wrote ourselves.

`record(seed)` is one chat: a list of (role, text). The same seed gives the same chat on every machine. Training uses
the seeds from 0 up, validation those from VALIDATION_SEED up.

A template is text with `{slots}` and `[choices|like|these]`; choices nest.
"""

import json
import random
import re

VALIDATION_SEED = 1_000_000_000

GIRLS = """Ada Mila Nora Lucy Emma Ruby Hazel Ivy Clara Bella Daisy Elsie Flora Greta Hanna Ida Juno Kira Lena Maya
Nina Olive Penny Rosa Stella Tess Uma Vera Wilma Zoe Poppy Willow Pearl Luna Mabel Tilda Dora Fern Molly Anna""".split()
BOYS = """Tom Ben Max Leo Finn Oscar Theo Hugo Jack Sam Otto Felix Emil Bruno Karl Noah Oliver Pip Rufus Toby Victor
Walter Arlo Bert Casper Dexter Edgar Freddie Gus Henry Ivan Jasper Kit Louis Milo Ned Peter Ralph Simon Albert""".split()
ANIMALS = """fox|rabbit|bear|mouse|cat|dog|owl|hedgehog|squirrel|deer|wolf|frog|duck|goose|hen|horse|pony|donkey|goat|
sheep|lamb|cow|pig|beaver|otter|badger|mole|bat|crow|raven|sparrow|robin|swan|turtle|snail|bee|ant|butterfly|spider|
dragonfly|fish|whale|dolphin|seal|penguin|walrus|octopus|crab|starfish|seahorse|lion|tiger|elephant|giraffe|zebra|
monkey|parrot|crocodile|hippo|rhino|camel|kangaroo|koala|panda|lizard|snake|chameleon|flamingo|peacock|eagle|hawk|
kitten|puppy|calf|foal|duckling|chick|raccoon|moose|reindeer|polar bear|hamster|guinea pig|woodpecker|stork|pigeon|
llama|sloth|toad|salmon|firefly|ladybird|caterpillar|shark|jellyfish|goldfish|rat|rooster|turkey|bull|leopard|
cheetah|gorilla|weasel|lynx|seagull|pelican|heron|magpie|worm|cricket|beetle|baby elephant|old dog|little bird|bird""".replace("\n", "").split("|")
PEOPLE = """girl|boy|robot|dragon|giant|witch|wizard|knight|princess|prince|king|queen|pirate|sailor|farmer|baker|
gardener|painter|clockmaker|fisherman|teacher|doctor|musician|shepherd|inventor|explorer|ghost|fairy|elf|dwarf|troll|
mermaid|unicorn|snowman|scarecrow|toy soldier|little robot|young dragon|cook|carpenter|astronaut|captain|librarian|
postman|detective|magician|clown|miller|tailor|blacksmith|child|grandmother|grandfather|alien|monster|phoenix|
lighthouse keeper|train driver|nurse|scientist|singer|dancer|poet|beekeeper|shoemaker|goblin|firefighter|pilot""".replace("\n", "").split("|")
MALE = {"boy", "wizard", "prince", "king", "fisherman", "postman", "grandfather", "rooster", "bull", "snowman", "toy soldier"}
FEMALE = {"girl", "witch", "princess", "queen", "mermaid", "grandmother", "hen", "cow", "fairy"}
KINDS = ANIMALS + PEOPLE
KIND_WORDS = ["little", "young", "small", "clever", "shy", "brave", "kind", "curious", "cheerful", "quiet", "friendly",
              "gentle", "funny", "lonely", "hungry", "tiny", "lazy", "old", "grumpy", "proud", "busy", "stubborn"]
PLACES = [("in", w) for w in """forest|valley|village|garden|meadow|town|castle|cave|city|jungle|desert|orchard|harbour|
barn|park|swamp|library|market|kingdom|tower|museum|bakery|school|cottage|windmill|workshop|vineyard""".replace("\n", "").split("|")] + [
    ("on", w) for w in "farm|island|hill|mountain|beach|ship|cliff|glacier|space station|train".split("|")] + [
    ("by", w) for w in "river|lake|sea|pond|waterfall|stream|bridge|lighthouse".split("|")]
PLACE_WORDS = ["small", "green", "quiet", "old", "sunny", "wide", "hidden", "windy", "snowy", "faraway", "beautiful", "misty"]
THINGS = """lighthouse|clock|kite|boat|bridge|bell|drum|violin|lantern|map|key|mirror|book|telescope|music box|bicycle|
balloon|ladder|wagon|windmill|umbrella|compass|machine|piano|treasure chest|snow globe|flute|radio|train|rocket|
little house|tree house|sand castle|garden gate|teapot|candle|magic stone|sundial|puppet|raft|swing|weather vane|star|
moon|cloud|rainbow|apple tree|old oak|seed|flower|river|well""".replace("\n", "").split("|")
BUILT = """boat|kite|raft|bridge|tree house|swing|wagon|ladder|sand castle|windmill|little house|bell|drum|flute|lantern|
clock|music box|telescope|puppet|rocket|machine""".replace("\n", "").split("|")
BROKEN = """lighthouse|clock|windmill|bell|music box|bridge|telescope|lantern|radio|piano|train|machine|wagon|bicycle|
weather vane|well""".replace("\n", "").split("|")
COLOURS = "red blue green yellow white black brown golden silver purple orange pink grey".split()
OBJECTS = """scarf|hat|ball|ring|key|book|bell|button|map|lantern|flute|kite|cup|basket|spoon|boot|coin|whistle|feather|
blanket|necklace|drum|pencil|umbrella|mitten|marble|compass|ribbon|toy boat|teddy bear|letter|watch|shell""".replace("\n", "").split("|")
HIDING = ["under a [big|flat|mossy] stone", "behind the old oak tree", "in a pile of leaves", "next to the well",
          "under the wooden bridge", "inside a hollow log", "on a [high|low] branch", "in the tall grass", "beside the path",
          "behind a barrel", "in a bird's nest", "under the bed", "between two rocks", "in the mud near the water",
          "on top of the fence", "in an empty bucket", "behind the door", "under a bush with red berries"]
FOODS = """apple pie|honey|bread|soup|berries|cheese|pancakes|carrots|nuts|cake|porridge|cherries|mushrooms|plums|
cookies|tea|pears|strawberries|pumpkin soup|jam|grapes|corn|potatoes|rice|noodles|lemonade""".replace("\n", "").split("|")
FEARS = ["the dark", "thunder", "deep water", "high places", "loud noises", "strangers", "the wind", "shadows", "being alone"]
WEATHER = ["The sun was shining and [the sky was blue|a warm wind blew].", "It was a cold [winter|autumn] morning and the grass was white with frost.",
           "Soft rain was falling on the [roof|leaves|ground].", "The snow lay deep and everything was quiet.",
           "It was a warm summer [day|evening] and the bees were humming.", "Thick fog covered the land.",
           "The wind was strong and the clouds were moving fast.", "It was spring, and the first flowers were opening.",
           "The moon was round and bright that night.", "The leaves were turning red and gold.",
           "There had been no rain for many days.", "The air smelled of [salt|flowers|rain|fresh bread]."]
LIKES = ["singing", "painting", "swimming", "reading", "climbing trees", "collecting shells", "baking", "dancing", "looking at the stars",
         "telling jokes", "picking flowers", "building things", "running", "playing the flute", "counting clouds", "solving riddles",
         "making maps", "listening to the rain", "fishing", "growing vegetables", "writing letters", "flying kites"]
CITIES = "Bern Oslo Lisbon Paris Vienna Prague Dublin Athens Rome Madrid Tokyo Cairo Lima Boston Hamburg Zurich Helsinki Berlin London Basel".split()
JOBS = "baker teacher doctor gardener painter carpenter sailor farmer nurse pilot musician librarian cook tailor engineer writer".split()
NUMBERS = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
seventeen eighteen nineteen twenty""".split()
OPPOSITES = [p.split("-") for p in """hot-cold big-small up-down happy-sad fast-slow day-night old-young high-low wet-dry light-dark
open-closed loud-quiet hard-soft full-empty rich-poor strong-weak long-short early-late near-far clean-dirty thick-thin
left-right warm-cool brave-afraid sweet-sour begin-end win-lose buy-sell push-pull true-false""".split()]

MORALS = {
    "lost": ["Things that are lost can be found when friends help.", "It is easier to search with two than alone.", "Never give up too soon."],
    "storm": ["A warm home is best when it is shared.", "Storms pass, but friends stay.", "Opening a door can open a heart."],
    "ill": ["A small kindness can be the best medicine.", "Friends take care of each other.", "Kindness costs little and means a lot."],
    "stuck": ["Asking for help is not a weakness.", "Even the strongest need help sometimes.", "A calm head finds a way."],
    "build": ["Trying again is how we learn.", "Mistakes are good teachers.", "Patience makes good work."],
    "fear": ["Being brave means being afraid and going on.", "Fear grows smaller when you look at it.", "Courage can be learned."],
    "way": ["If you stay calm, you will find the way.", "There is always a light somewhere.", "Home is never as far as it seems."],
    "share": ["Sharing makes everything taste better.", "Two happy friends are better than one full plate.", "What you give comes back to you."],
    "sound": ["Not every strange thing is dangerous.", "Look first, and then decide.", "Curiosity can make new friends."],
    "contest": ["It is not important to win, but to do your best.", "Practice makes you better every day.", "A good friend is the best prize."],
    "drought": ["Many small drops make a river.", "Together even hard work is light.", "Care makes things grow."],
    "repair": ["Old things deserve care.", "With patience, almost everything can be mended.", "Good hands and a good friend can mend a lot."],
}

INNER = re.compile(r"\[([^\[\]]*)\]")


def spin(r, template, slots):
    """Fills slots and takes choices, innermost first."""
    while "[" in template:
        template = INNER.sub(lambda m: r.choice(m.group(1).split("|")), template)
    return template.format_map(slots)


def an(noun):
    """The noun with its article."""
    return ("an " if noun[0] in "aeiou" and not noun.startswith("uni") else "a ") + noun


def upper(text):
    """The text with a capital first letter."""
    return text[0].upper() + text[1:]


def character(r, kind=None, not_kind=None, not_name=None):
    """Somebody: kind, name and pronouns."""
    kind = kind or r.choice([k for k in r.sample(KINDS, 3) if k != not_kind])
    female = kind in FEMALE or (kind not in MALE and r.random() < 0.5)
    name = r.choice([n for n in r.sample(GIRLS if female else BOYS, 2) if n != not_name])
    words = ("she", "her", "her", "herself") if female else ("he", "him", "his", "himself")
    return {"kind": kind, "name": name, "s": words[0], "o": words[1], "p": words[2], "self": words[3]}


PLOTS = {}


def plot(f):
    """Registers a plot by its function's name."""
    PLOTS[f.__name__] = f
    return f


MEET = ("[Just then|At that moment|Soon|On the way], {N} met {ahk} named {H}. |{N} went to see {p} friend {H} the {hk}. "
        "|Then {ahk} came along. {HP} name was {H}. |A {hw} {hk} called {H} [was passing by|heard {o}|saw {o}]. ")
ASK = ("[\"What is wrong?\" asked {H}. |\"Why do you look so [sad|worried]?\" asked {H}. |\"Can I help you?\" asked {H}. "
       "|\"Hello, {N}! What are you doing?\" said {H}. ]")
THANK = ("[\"Thank you, {H}!\" said {N}. |\"You are a true friend,\" said {N}. |{N} [hugged|thanked] {H}. "
         "|\"I could not have done it without you,\" said {N}. ]")


@plot
def lost(r, c):
    return [f"One [day|morning|evening], {{N}} lost {{p}} {{colour}} {{obj}}. [It had been a [gift|present] from {{p}} {r.choice(['grandmother', 'mother', 'father', 'best friend'])}. |{{S}} had it with {{o}} every day. ][{{N}} was very sad.|{{S}} felt like crying.|\"Where can it be?\" {{s}} said.]",
            "{S} looked " + r.choice(HIDING) + ", but it was not there. [Then|Next] {s} looked " + r.choice(HIDING) + ", but [there was nothing|{s} found only {some}].",
            f"[{MEET}]{ASK}\"I have lost my {{obj}},\" said {{N}}. \"[Let us look together|I will help you|Four eyes see more than two],\" said {{H}}.",
            "[They searched for a long time.|They walked along the path and looked [left and right|everywhere].|{H} had [sharp|good] eyes.] [At last|Finally|Suddenly], {H} saw something {colour} {hiding}. It was the {obj}!",
            f"[{{N}} jumped for joy. |{{N}} was so happy that {{s}} danced. |{{N}} laughed. ]{THANK}"]


@plot
def storm(r, c):
    return ["One [evening|afternoon|night], a [great|terrible|heavy] storm came. The wind [howled|roared] and the rain beat against the [windows|walls|roof]. {N} was warm inside and was [eating {food}|sitting by the fire].",
            "[Suddenly|Then] there was a knock at the door. It was {H} the {hk}, [wet and cold|shaking with cold|wet from head to foot]. \"[May I come in?|Please let me in!|The wind has blown my roof away,]\" said {H}.",
            "{N} [did not think long|thought for a moment]. \"[Come in and sit by the fire|Of course, come in|There is room for two],\" {s} said. {S} gave {H} a [dry|warm|soft] blanket and [a bowl of|some] {food}.",
            "All night they [told each other stories|sang songs|talked and laughed], and [soon they forgot the storm|the storm did not seem so bad any more].",
            "In the morning the [sun was shining|sky was clear|storm was over]. [{H} invited {N} to visit soon. |Together they mended the roof. ]From that day on, {N} and {H} were [good|best] friends."]


@plot
def ill(r, c):
    return ["One [day|morning], {N} heard that {p} friend {H} the {hk} was [ill|sick in bed|not feeling well]. \"[Poor {H}!|Oh dear!|I must do something,]\" said {N}.",
            "{S} thought about what {H} liked best. {H} loved {food}. So {N} [went to the kitchen and made|packed a basket with|walked to the market and got] some {food}.",
            "[The way was long, and it began to rain.|The path was steep and full of stones.|On the way {s} also picked some {colour} flowers.] But {N} [did not turn back|walked on and sang a little song|thought of {H} and went on].",
            "When {N} came to {H}'s door, {s} knocked softly. \"[Look what I have brought you|I have brought you some {food}],\" {s} said. {H} [smiled for the first time that day|sat up in bed and smiled|could hardly believe it].",
            "They ate together, and {N} told {H} [a funny story|about the {place}|the news]. The next day {H} [felt much better|was well again|could get up again]. \"[Your visit was the best medicine|Thank you for coming],\" said {H}."]


@plot
def stuck(r, c):
    trap, way = r.choice([("fell into a deep hole", "tied a rope to a tree and let it down"), ("got stuck in the mud", "laid a long branch across the mud"),
                          ("climbed a tall tree and could not get down", "brought a ladder"), ("was caught in a net", "cut the net, string by string"),
                          ("got stuck between two rocks", "pushed one rock away with a strong stick"), ("walked onto a rock, and the water rose around it", "came with a small boat")])
    c.update(trap=trap, way=way)
    return ["One day, {N} was [looking for {food}|playing|following a {colour} butterfly|walking home]. {S} did not [look where {s} was going|take care], and {s} {trap}. \"Help!\" {s} called. \"Help me!\"",
            "[At first nobody came.|For a long time, nobody heard {o}.] {N} tried to get free, but it was no use. [{S} was tired and afraid.|\"Stay calm,\" {s} told {self}.]",
            "Then {H} the {hk} heard the call. \"[Do not worry|Do not be afraid|Wait], {N}, I will help you!\" said {H}. {H} [thought hard|looked around|had an idea].",
            "{H} {way}. [\"Hold on tight!\" {hs} said. |\"One, two, three!\" {hs} counted. ][Slowly, very slowly,|After a while] {N} came free.",
            THANK + "[\"Next time, look where you are going,\" said {H} and laughed.|\"Everyone needs help sometimes,\" said {H}.|\"You would do the same for me,\" said {H}.]"]


@plot
def build(r, c):
    if c["thing"] not in BUILT:
        c["thing"] = r.choice(BUILT)
    c["athing"] = an(c["thing"])
    return ["One day, {N} decided to build {athing}. {S} collected [wood|old boards|string and paper|nails and rope] and [began to work|started at once].",
            "The first {thing} [broke at once|fell apart|did not work at all]. The second one was [too heavy|too small|crooked], and it broke too. \"[I will never do it|It is too hard|I give up],\" said {N}, and {s} sat down.",
            f"[{MEET}]\"I wanted to build {{athing}}, but it always breaks,\" said {{N}}. \"[May I see it?|Show me,]\" said {{H}}. \"[You need stronger rope|This part must be longer|You must measure first|Let us draw a plan].\"",
            "So they worked together. {N} [cut|held] the wood, and {H} [tied the knots|hammered the nails|measured every piece]. [They worked until the sun went down.|It took three days.|They did not hurry.]",
            "At last the {thing} was ready. It was [beautiful|strong|better than {N} had dreamed], and they painted it {colour}. \"[It works!|We did it!|Look at that!]\" [cried|shouted] {N}."]


@plot
def fear(r, c):
    c["fear"] = r.choice(FEARS)
    return ["But {N} had a secret: {s} was afraid of {fear}. [The others sometimes laughed about it.|{S} never told anyone.|Because of that, {s} often stayed at home.]",
            f"[{MEET}]\"[Come with me to the {{place2}}|Let us go to the {{place2}}],\" said {{H}}. \"I cannot,\" said {{N}}. \"I am afraid of {{fear}}.\"",
            "{H} did not laugh. \"[I was afraid once, too|Everyone is afraid of something],\" said {H}. \"[Take my hand|We will go together], and [take one small step|count to ten|breathe slowly].\"",
            "{N}'s heart was beating fast, but {s} [took one step, and then another|closed {p} eyes and went on|counted to ten]. [Nothing bad happened.|It was not so bad.]",
            "When they [came to|reached] the {place2}, {N} [looked around and smiled|was proud of {self}]. \"I did it!\" {s} said. [After that day, {s} was not so afraid of {fear} any more.|{S} was still a little afraid of {fear}, but now {s} knew what to do.]"]


@plot
def way(r, c):
    c["sign"] = r.choice(["a small light in the distance", "a river that flowed towards home", "the sound of a bell", "{p} own footprints in the ground".format(p=c["p"]), "a bright star in the north", "smoke rising from a chimney"])
    return ["One day, {N} [walked|went] farther than ever before, [to look for {food}|to see what was behind the hill|to follow a {colour} bird]. When it [grew dark|got late], {s} did not know the way home.",
            "\"[Where am I?|Which way is it?|I am lost,]\" said {N}. [Every tree looked the same.|All the paths looked the same.|{S} went left, then right, then left again.]",
            f"[{MEET}]\"I have lost my way,\" said {{N}}. \"[Do not be afraid|Stay calm],\" said {{H}}. \"[Look and listen|Let us look around], and we will find a sign.\"",
            "They [stood still|climbed onto a rock|listened]. Then they noticed {sign}. \"[That is the way!|I know this!|We only have to follow it!]\" [said|cried] {N}.",
            "Together they walked through the night, and [soon|before sunrise] they came to the {place}. {N} was home again. {S} gave {H} some {food}, and {H} stayed [for the night|until the morning]."]


@plot
def share(r, c):
    return ["One day, {N} found a [big|large|whole] basket of {food}. \"[This is all mine|I will not give any of it away|What luck!],\" {s} said.",
            "Then {H} the {hk} came by. {H} had not eaten since [yesterday|the morning]. \"[May I have a little?|Would you share with me?|That smells good,]\" said {H}. \"No,\" said {N}, \"[I found it first|it is mine].\" {H} went away [sadly|without a word].",
            "{N} began to eat. But [the {food} did not taste as good as {s} had thought|{s} felt lonely|{s} could not stop thinking of {H}].",
            "So {N} [ran after|went to look for] {H}. \"I am sorry,\" {s} said. \"[Please come and eat with me|Half of it is for you|Let us share it].\"",
            "They sat down [under a tree|in the sun|side by side] and ate together. [Now the {food} tasted wonderful. |It was the best meal of the year. ]The next week, {H} found some {food2} and [brought half of it to {N}|shared it with {N}]."]


@plot
def sound(r, c):
    c["sound"], c["cause"] = r.choice([("a strange humming", "an old music box"), ("a deep growling", "a [sleepy|hungry] little kitten".replace("[sleepy|hungry]", "sleepy")), ("a soft tapping", "a branch that knocked against the window"),
                                       ("a ringing sound", "a small bell in the wind"), ("a long whistle", "the wind in an empty bottle"), ("a splashing noise", "a family of ducks"), ("a sad song", "a lonely bird")])
    return ["One night, {N} heard {sound}. It came from [behind the house|the other side of the {place}|the {place2}]. {N} [could not sleep|sat up|held {p} breath].",
            "\"[What is that?|Is it a monster?|Who is there?]\" {s} whispered. [But nobody answered.|The sound came again.]",
            "In the morning {N} told {H} the {hk} about it. \"[Let us find out|Let us go and see],\" said {H}. [So that night they took a lantern|They took a lantern and a rope] and [crept|walked] [quietly|slowly] towards the sound.",
            "The sound grew louder and louder. [{N}'s knees were shaking.|{N} held {H}'s hand.] Then {H} lifted the lantern, and they saw what it was: {cause}!",
            "{N} and {H} laughed [until their sides hurt|for a long time]. \"[And I was so afraid|I thought it was a monster]!\" said {N}. [That night {s} slept very well.|From then on, {s} liked the sound.]"]


@plot
def contest(r, c):
    c["contest"], c["train"] = r.choice([("a great race", "ran up and down the hill"), ("a singing contest", "sang from morning to evening"), ("a baking contest", "baked one cake after another"),
                                         ("a swimming race", "swam a little farther every day"), ("a painting contest", "painted picture after picture"), ("a dancing contest", "danced until the moon came up")])
    return ["[That summer|One day|Every year] there was {contest} [in|near] the {place}. {N} wanted to [win|take part], but {s} had never [done it before|dared to try].",
            "\"You? You will be last!\" said the others. {N} [was sad, but {s} did not give up|did not listen to them]. Every day {s} {train}.",
            f"{{H}} the {{hk}} [watched|saw] {{o}}. \"[May I help you|Shall we practise together]?\" asked {{H}}. \"[You are getting better|Do not hurry|Do it in your own way],\" {{hs}} said [every day|with a smile].",
            "Then the great day came. {N} was [nervous|excited], but {s} saw {H} in the crowd, and {s} [did {p} best|gave everything {s} had].",
            "[{N} won the first prize, a {colour} {obj}.|{N} did not win, but {s} came second, and everybody clapped.|{N} came third and got a {colour} ribbon.] \"[I am proud of you|You were wonderful],\" said {H}. They [ate|had] {food} to celebrate."]


@plot
def drought(r, c):
    return ["That year there was no rain. The plants [hung their heads|turned yellow], and the [ground|earth] was as hard as stone. {N} had a small garden with {food2}, and {s} was worried.",
            "\"If it does not rain soon, [everything will die|we will have nothing to eat],\" said {N}. {S} looked at the sky every morning, but there was not a single cloud.",
            f"[{MEET}]\"[There is water in the old well|The river still has some water|I know a spring in the hills],\" said {{H}}. \"It is far, but we can carry it.\"",
            "So every day they walked there with [two buckets|a cart and a barrel|big jugs] and gave water to every plant. [It was hard work, and their arms hurt.|The others came and helped, too.] [They did not stop.|They sang as they walked.]",
            "The plants became green again, and one evening [the first drops fell|it began to rain]. In autumn there was a [great|rich] harvest, and {N} and {H} [had a feast|made {food} for everyone]."]


@plot
def repair(r, c):
    if c["thing"] not in BROKEN:
        c["thing"] = r.choice(BROKEN)
    c["athing"] = an(c["thing"])
    return ["[In the middle of|At the edge of|Not far from] the {place} there was an old {thing}. Everyone loved it, but one day it [stopped working|broke]. \"[Nobody can mend it|It is too old|That is the end of it],\" people said.",
            "But {N} did not think so. {S} [took a lamp and some tools|looked at it from all sides|studied it all day]. [There was dust and rust everywhere.|Many small parts were missing.] \"[I need help|I cannot do this alone],\" {s} said.",
            f"[{MEET}]\"The old {{thing}} is broken,\" said {{N}}. \"[I have good tools|I am good with my hands|Let me see it],\" said {{H}}.",
            "They worked [day and night|for three days|from sunrise to sunset]. {N} [cleaned every part|turned the screws|held the light], and {H} [made a new wheel|found the missing piece|oiled the gears]. [Twice they almost gave up.|They were patient.]",
            "[At last|On the last evening] the {thing} worked again. [Everybody came to see it.|All the neighbours cheered.|It was as good as new.] \"[Well done, {N} and {H}!|You two are heroes!]\" they said."]


@plot
def treasure(r, c):
    c["prize"] = r.choice(["a box of old letters", "a chest full of shells", "a tiny golden bell", "a bag of seeds", "a picture of the {place} long ago".format(**c), "a book of songs"])
    return ["One day, {N} found {athing} [in the grass|in the attic|near the water|behind the house], and beside it lay an old map. [A cross was drawn on it.|It showed the way to a treasure.]",
            "\"[I wonder what it means,|A real treasure map!|I must follow it,]\" said {N}. {S} [packed some {food} and set out|put the map in {p} bag and set out].",
            f"[{MEET}]\"I am looking for a treasure,\" said {{N}}. \"[May I come with you|Can I come, too]?\" asked {{H}}. \"[Yes, please|Of course],\" said {{N}}, \"[we will share it|it is more fun together].\"",
            "They [crossed a river|climbed a hill|went through a dark tunnel], and they [walked past the {place2}|counted a hundred steps]. {hiding_c} they began to dig, and soon they found a box.",
            "In the box there was {prize}. [It was not gold, but they were happy.|\"That is better than gold!\" said {H}.] They [took it home|carried it home together] and [showed it to everyone|kept it for ever]. \"[The best treasure is a friend,|What an adventure!]\" said {N}."]


@plot
def wish(r, c):
    return ["Every night {N} looked at the sky and made a wish. {S} wished for {athing}, because [nobody in the {place} had one|{s} had seen one in a book|{p} friends talked about nothing else].",
            "[Days and weeks went by, but nothing happened.|But wishing alone did not help.] {N} [sighed|was disappointed].",
            f"[{MEET}]\"I wish for {{athing}},\" said {{N}}. \"[A wish needs feet|Wishing is good, but doing is better],\" said {{H}}. \"[What can you do today|What is the first step]?\"",
            "{N} thought about it. The next day {s} began to [work for the baker|sell {food} at the market|help the neighbours], and every evening {s} put a coin in a jar. {H} helped, too.",
            "[When the jar was full|After a whole year], {N} [went to the market|bought it at last]. There it was: {athing}, [shining in the sun|more beautiful than in the dream]. {S} [laughed with joy|showed it to {H} first]. \"[We did it together|My wish came true],\" {s} said."]


MORALS["treasure"] = ["The best treasure is a good friend.", "An adventure is better with a friend.", "Gold is not everything."]
MORALS["wish"] = ["A wish needs some work to come true.", "Small steps lead to big dreams.", "Dreams begin with the first step."]
PROBLEM = {"lost": "{N} lost {p} {obj}", "storm": "there was a storm", "ill": "{H} was ill", "stuck": "{N} {trap}", "build": "the {thing} broke",
           "fear": "{N} was afraid of {fear}", "way": "{N} lost the way home", "share": "{N} did not want to share", "sound": "{N} heard {sound}",
           "contest": "{N} wanted to take part in {contest}", "drought": "there was no rain", "repair": "the {thing} was broken",
           "treasure": "{N} looked for a treasure", "wish": "{N} wished for {athing}"}
INTRO = ("[Once upon a time, there was|Long ago, there lived|There once was|Once there was] {awk} named {N}. {S} lived {prep} {apwplace}. "
         "|[Once upon a time, there|Long ago, there] lived {awk} {prep} {apwplace}. {P} name was {N}. "
         "|{N} was {awk} who lived {prep} {apwplace}. |{Prep} {apwplace} there lived {awk} named {N}. ")
LIKE = "[{S} loved {like}.|{S} [liked {like} more than anything|was good at {like}].|Everyone knew that {N} loved {like}.|Every [day|morning|evening] {s} went [outside|to the {place2}].]"
ENDING = ("[And so {N} and {H} became [friends|the best of friends].|{N} never forgot that day.|That evening {N} fell asleep with a smile.|From then on, {N} and {H} met every [day|week|Sunday].|And if you go to the {place}, you may still [see|meet] them there.|{N} and {H} were [happy|friends for the rest of their lives].|] ")


def scene(r, kind=None, plot_name=None, **fixed):
    """A plot with its characters and things, and all slots filled."""
    hero = character(r, kind)
    helper = character(r, fixed.pop("helper_kind", None), hero["kind"], hero["name"])
    prep, place = fixed.pop("at", None) or r.choice(PLACES)
    place2 = r.choice([p for _, p in r.sample(PLACES, 2) if p != place])
    food, food2 = r.sample(FOODS, 2)
    c = {"N": fixed.pop("name", hero["name"]), "k": hero["kind"], "s": hero["s"], "o": hero["o"], "p": hero["p"], "self": hero["self"],
         "H": helper["name"], "hk": helper["kind"], "hs": helper["s"], "ho": helper["o"], "hp": helper["p"], "prep": prep, "place": place, "place2": place2, "food": food, "food2": food2,
         "colour": r.choice(COLOURS), "obj": r.choice(OBJECTS), "thing": r.choice(THINGS), "like": r.choice(LIKES), "hw": r.choice([w for w in KIND_WORDS if w[0] not in "aeiou"]),
         "word": r.choice(KIND_WORDS), "pword": r.choice(PLACE_WORDS), "hiding": spin(r, r.choice(HIDING), {}), "some": r.choice(["a few leaves", "an old nail", "a snail", "some dust", "a broken cup"])}
    c.update(fixed)
    if c["word"].split()[0] in c["k"].split():
        c["word"] = "kind"
    c.update(S=upper(c["s"]), P=upper(c["p"]), HP=upper(c["hp"]), ak=an(c["k"]), ahk=an(c["hk"]), awk=an(c["word"] + " " + c["k"]), Prep=upper(prep),
             apwplace=an(c["pword"] + " " + place), aplace=an(place), athing=an(c["thing"]), hiding_c=upper(c["hiding"]), aobj=an(c["obj"]))
    c["plot"] = plot_name or r.choice(list(PLOTS))
    c["parts"] = PLOTS[c["plot"]](r, c)
    return c


def tell(r, c, short=False):
    """The scene as text: paragraphs, or a few sentences."""
    intro = spin(r, "[" + INTRO + "]", c)
    parts = [spin(r, p, c).strip() for p in c["parts"]]
    if short:
        return intro + " ".join([parts[0], parts[1 if c["plot"] in ("storm", "share", "fear") else 2], parts[-1]])
    intro += " ".join(spin(r, x, c) for x in r.sample([LIKE, r.choice(WEATHER)], r.choice([1, 2, 2])))
    ending = spin(r, ENDING, c) + (spin(r, "[" + "|".join(MORALS[c["plot"]]) + "]", c) if r.random() < 0.5 else "")
    if r.random() < 0.7:
        cut = r.choice([2, 3])
        paragraphs = [intro, " ".join(parts[:cut]), " ".join(parts[cut:])] + [ending]
        return "\n\n".join(" ".join(p.split()) for p in paragraphs if p.strip())
    return " ".join(" ".join([intro, *parts, ending]).split())


ASKING = ["[Tell me|Please tell me|Can you tell me|Tell|Tell us] [a story|a short story|a little story] about {what}", "[Write|Please write|Could you write|Can you write] [a story|a short story|a tale] about {what}",
          "[I would like|I want|Give me] a [story|short story|bedtime story] about {what}", "[A story|Story|Short story] about {what}", "Make up a [story|tale] about {what}", "[Invent|Create] a short story [about|with] {what}"]
TINY = ["[Tell me|Write] a very short story about {what}", "[Tell me|Write] a story about {what} in a few sentences", "A tiny story about {what}"]


def request(r, c):
    """How somebody could ask for the scene."""
    ways = ["{ak}"] * 6 + ["{awk}"] * 3 + ["{ak} named {N}"] * 3 + ["{ak} called {N}", "{ak} and {ahk}", "{ak} and {ahk}", "{ak} and {p} friend, {ahk}", "{ak} {prep} {aplace}", "{ak} {prep} {aplace}",
            "{ak} who lives {prep} {aplace}", "{N} the {k}", "{ak} and some {food}", "{N} and {H}, {ak} and {ahk}"]
    if c["plot"] in ("build", "repair", "treasure", "wish"):
        ways += ["{ak} and {athing}"] * 14
    ways += {"lost": ["{ak} who lost {p} {obj}", "{ak} and {aobj}", "{ak} and a lost {obj}"], "storm": ["{ak} and a storm", "{ak} in a storm"], "ill": ["{ak} who helps a friend", "kindness", "{ak} and friendship"],
             "stuck": ["{ak} who needs help", "{ak} in trouble"], "build": ["{ak} who builds {athing}", "patience"], "fear": ["{ak} who is afraid of {fear}", "courage", "{ak} who learns to be brave"],
             "way": ["{ak} who lost the way home", "{ak} who is lost"], "share": ["{ak} who learns to share", "sharing"], "sound": ["{ak} and a strange sound", "a mystery"], "contest": ["{ak} and {contest}"],
             "drought": ["{ak} and a garden", "{ak} and the rain"], "repair": ["{ak} who repairs {athing}", "an old {thing}"], "treasure": ["{ak} and a treasure", "a treasure map"], "wish": ["{ak} who makes a wish", "{ak} with a dream"]}[c["plot"]] * 2
    return spin(r, r.choice(ways), c)


def ending_mark(r, text):
    """Some people write a full stop, some a question mark, some nothing."""
    return text + ("?" if text.startswith(("Can", "Could")) and r.random() < 0.8 else r.choice([".", ".", ".", "", "!"]))


def questions(r, c):
    """Questions about a scene with their answers."""
    q = [("What is the [name of the {k}|{k}'s name|{k} called]?", "[The {k} is called {N}.|The {k}'s name is {N}.|{N}.]"), ("Who is {N}?", "{N} is {awk}.|{N} is {awk} who lives {prep} {apwplace}."), ("[What kind of animal or person is|What is] {H}?", "{H} is {ahk}."),
         ("Where does {N} live?", "{N} lives {prep} {apwplace}."), ("[Who helped|Who is the friend of] {N}?" if c["plot"] not in ("storm", "ill", "share") else "Who is the other character in the story?", "[{H} the {hk}.|It was {H}, {ahk}.]"),
         ("What is the problem in the story?", "The problem was that " + PROBLEM[c["plot"]] + "."), ("What [can we learn from the story|is the moral of the story]?", r.choice(MORALS[c["plot"]])),
         ("Who are the characters in the story?", "The characters are {N} the {k} and {H} the {hk}.")]
    if c["plot"] == "lost":
        q += [("What did {N} lose?", "{N} lost {p} {colour} {obj}."), ("What colour was the {obj}?", "The {obj} was {colour}."), ("Where was the {obj}?", "It was {hiding}.")] * 2
    if c["plot"] in ("storm", "ill", "share"):
        q += [("What did they eat?", "They ate {food}.")] * 2
    if c["plot"] in ("build", "repair"):
        q += [("What did {N} and {H} [make work|work on]?", "They worked on the {thing}.")] * 2
    question, answer = r.choice(q)
    return spin(r, question, c), spin(r, "[" + answer + "]" if answer[0] != "[" else answer, c)


def story_json(c):
    """A scene as a record."""
    return json.dumps({"hero": c["N"], "kind": c["k"], "place": c["place"], "friend": c["H"], "friend_kind": c["hk"], "problem": PROBLEM[c["plot"]].format_map(c)})


def make_scene(r):
    """A scene and the request that fits it."""
    c = scene(r)
    return c, request(r, c)


def story_chat(r):
    c, what = make_scene(r)
    short = r.random() < 0.12
    chat = [("user", ending_mark(r, spin(r, r.choice(TINY if short else ASKING), {"what": what}))), ("assistant", tell(r, c, short))]
    while r.random() < 0.25 and len(chat) < 8:
        if r.random() < 0.15:
            chat += [("user", r.choice(["Give me that as JSON.", "Write the story as a JSON record.", "Summarise the story as JSON.", "As JSON, please."])), ("assistant", story_json(c))]
        elif r.random() < 0.15:
            chat += [("user", r.choice(["Thank you!", "Thanks.", "That was nice.", "I like it.", "Great story!"])), ("assistant", spin(r, "[You are welcome!|I am glad that you like it.|My pleasure.] [Would you like another story?|Shall I tell you another one?|]", c).strip())]
        elif r.random() < 0.2:
            c, what = make_scene(r)
            chat += [("user", ending_mark(r, spin(r, "[Now tell me|Another one, please, about|And a story about|Now one about] " + "{what}", {"what": what}).replace("Now tell me", "Now tell me a story about"))), ("assistant", tell(r, c))]
        else:
            chat += list(zip(("user", "assistant"), questions(r, c)))
    return chat


def reading(r):
    """A given text and questions about it."""
    c = scene(r)
    text = tell(r, c, r.random() < 0.5)
    first, answer = questions(r, c)
    chat = [("user", r.choice(["Read this story and answer: {q}\n\n{t}", "{t}\n\n{q}", "{t}\n\nQuestion: {q}", "Story: {t}\n\n{q}"]).format(q=first, t=text)), ("assistant", answer)]
    while r.random() < 0.5 and len(chat) < 8:
        chat += list(zip(("user", "assistant"), questions(r, c)))
    return chat


def records(r):
    """A description and its JSON record."""
    x = character(r)
    age, city, job, likes = r.randint(2, 90), r.choice(CITIES), r.choice(JOBS), r.sample(LIKES, r.choice([1, 2, 3]))
    colour, food, (prep, place) = r.choice(COLOURS), r.choice(FOODS), r.choice(PLACES)
    c = dict(x, ak=an(x["kind"]), age=age, city=city, job=job, ajob=an(job), likes=" and ".join(likes), colour=colour, food=food, prep=prep, aplace=an(place), S=upper(x["s"]), P=upper(x["p"]))
    person = r.random() < 0.5
    facts = [("age", age, "{S} is {age} years old."), ("likes", likes, "{S} likes {likes}."), ("colour", colour, "{P} favourite colour is {colour}."), ("food", food, "{S} likes to eat {food}.")]
    facts += [("city", city, "{S} lives in {city}."), ("job", job, "{S} works as {ajob}.")] if person else [("home", place, "{S} lives {prep} {aplace}.")]
    facts = r.sample(facts, r.randint(2, 4))
    text = spin(r, "{name} is a person." if person else "{name} is {ak}.", c) + " " + " ".join(spin(r, f[2], c) for f in facts)
    out = {"name": x["name"], "kind": "person" if person else x["kind"]}
    out.update({f[0]: f[1] for f in facts})
    ask = r.choice(["Write this as JSON: {t}", "Make a JSON record: {t}", "{t} Give me that as JSON.", "Turn this into JSON.\n\n{t}", "Extract the facts as JSON: {t}", "JSON record, please: {t}"])
    return [("user", ask.format(t=text)), ("assistant", json.dumps(out, indent=2 if r.random() < 0.15 else None))]


def invented(r):
    """A JSON record that is made up."""
    x = character(r)
    what = r.choice([x["kind"], "person"])
    out = {"name": x["name"], "kind": what, "age": r.randint(2, 90), "likes": r.sample(LIKES, 2)}
    ask = spin(r, "[Make up|Invent|Write|Give me] a JSON record [of|for|about] {w}.", {"w": an(what)})
    return [("user", ask), ("assistant", json.dumps(out))]


def sums(r):
    """Small sums, in words and in digits."""
    a, b = r.randint(0, 10), r.randint(0, 10)
    x, what = character(r), r.choice(["apples", "shells", "books", "coins", "nuts", "stars", "flowers", "buttons", "eggs", "marbles"])
    way = r.random()
    if way < 0.3:
        return [("user", r.choice([f"What is {a} plus {b}?", f"{a} + {b} = ?", f"How much is {a} + {b}?"])), ("assistant", r.choice([f"{a} + {b} = {a + b}.", f"{upper(NUMBERS[a])} plus {NUMBERS[b]} is {NUMBERS[a + b]}."]))]
    a, b = max(a, b), min(a, b)
    if way < 0.5:
        return [("user", r.choice([f"What is {a} minus {b}?", f"{a} - {b} = ?", f"How much is {a} - {b}?"])), ("assistant", r.choice([f"{a} - {b} = {a - b}.", f"{upper(NUMBERS[a])} minus {NUMBERS[b]} is {NUMBERS[a - b]}."]))]
    more = r.random() < 0.5
    verb = r.choice(["gets", "finds", "buys"]) if more else r.choice(["gives away", "loses", "sells"])
    total = a + b if more else a - b
    return [("user", f"{x['name']} has {NUMBERS[a]} {what}. {upper(x['s'])} {verb} {NUMBERS[b]}{' more' if more else ''}. How many {what} does {x['name']} have now?"),
            ("assistant", f"{x['name']} has {NUMBERS[total]} {what} now, because {NUMBERS[a]} {'plus' if more else 'minus'} {NUMBERS[b]} is {NUMBERS[total]}.")]


def words(r):
    """Opposites, counting, lists."""
    way = r.randrange(4)
    if way == 0:
        a, b = r.choice(OPPOSITES)
        a, b = (a, b) if r.random() < 0.5 else (b, a)
        return [("user", r.choice([f"What is the opposite of {a}?", f"Opposite of {a}?", f"Which word is the opposite of '{a}'?"])), ("assistant", f"The opposite of {a} is {b}.")]
    if way == 1:
        a = r.randint(0, 14)
        b = a + r.randint(2, 20 - a if a < 18 else 2)
        return [("user", f"Count from {a} to {b}."), ("assistant", ", ".join(str(i) for i in range(a, b + 1)) + ".")]
    n = r.randint(2, 8)
    what, pool = r.choice([("animals", ANIMALS), ("colours", COLOURS), ("foods", FOODS), ("names", GIRLS + BOYS), ("places", [p for _, p in PLACES]), ("cities", CITIES), ("jobs", JOBS)])
    chosen = r.sample(pool, n)
    if way == 2:
        return [("user", spin(r, "[Name|Tell me] {n} {w}.", {"n": NUMBERS[n], "w": what})), ("assistant", upper(", ".join(chosen[:-1]) + " and " + chosen[-1] + "."))]
    return [("user", spin(r, "[List|Write a list of|Give me a list of] {n} {w}.", {"n": NUMBERS[n], "w": what})), ("assistant", "\n".join(f"{i + 1}. {upper(w)}" for i, w in enumerate(chosen)))]


WHO = ["I am the Welte demo model: a very small language model that tells short stories.", "I am a tiny language model with about seven million parameters. I came with Welte, and I like to tell stories.",
       "I am Welte's demo model. I am very small, but I can tell stories, answer questions about them and write little JSON records."]
CANNOT = ["I am only a very small model and do not know that. But I can tell you a story about {ak}.", "That is too hard for me. I am a small demo model. Shall I tell you a story about {ak}?",
          "I do not know. I can tell short stories, answer questions about them, and write small JSON records."]
HARD = ["What is the capital of {city2}?", "Who won the [election|world cup]?", "Explain [quantum physics|the theory of relativity|photosynthesis|how engines work].", "Write a [program|function] in [Python|Rust|C].", "What is the weather today?",
        "Translate this into [French|German|Japanese].", "Who is the president?", "How far is the moon?", "What happened in [1789|1945|2001]?", "How do I cook [pasta|rice]?", "What is the meaning of life?", "When was [the telephone|the piano] invented?",
        "What is [365 times 12|the square root of two|17 times 23]?", "Who wrote [Hamlet|Faust|the Odyssey]?", "How does a computer work?", "What do you think about politics?", "Why is the sky blue?", "How tall is the highest mountain?"]


def talk(r):
    """Greetings, and what the model can and cannot do."""
    c = {"ak": an(r.choice(KINDS)), "city2": r.choice(["France", "Italy", "Japan", "Brazil", "Kenya", "Norway", "Peru"])}
    way = r.random()
    if way < 0.3:
        return [("user", r.choice(["Hello", "Hello!", "Hi", "Hi!", "Good morning", "Hey", "Good evening!", "Hello there", "Hi, how are you?", "How are you?"])),
                ("assistant", spin(r, "[Hello!|Hi!|Hello, it is nice to meet you!] [Would you like to hear a story?|Shall I tell you a story about {ak}?|What shall I tell you a story about?]", c))]
    if way < 0.5:
        return [("user", r.choice(["Who are you?", "What are you?", "What can you do?", "What is your name?", "Tell me about yourself.", "Are you a robot?", "Help", "What model are you?"])), ("assistant", r.choice(WHO))]
    if way < 0.6:
        s = scene(r)
        return [("user", r.choice(["Tell me a story.", "Tell me something.", "Write a story.", "A story, please!", "Surprise me.", "Tell me a bedtime story."])), ("assistant", tell(r, s))]
    if way < 0.7:
        return [("user", r.choice(["Thank you!", "Thanks", "Good night!", "Goodbye", "Bye!"])), ("assistant", r.choice(["You are welcome!", "Goodbye, and come back soon!", "Good night, and sweet dreams!"]))]
    return [("user", spin(r, r.choice(HARD), c)), ("assistant", spin(r, r.choice(CANNOT), c))]


SYSTEMS = ["You are a helpful assistant.", "You are a friendly storyteller.", "You tell short stories.", "You are a helpful assistant that answers briefly.", "Answer the question.", "You are Welte."]


def record(seed):
    """One chat, or a plain text (role `text`)."""
    r = random.Random(seed * 2654435761 + 97)
    way = r.random()
    if way < 0.08:
        return [("text", tell(r, scene(r)))]
    f = story_chat if way < 0.72 else reading if way < 0.80 else records if way < 0.88 else invented if way < 0.90 else sums if way < 0.94 else words if way < 0.97 else talk
    chat = f(r)
    return ([("system", r.choice(SYSTEMS))] if r.random() < 0.15 else []) + chat


def render(chat):
    """A chat in the form that the model reads (a plain text ends with <|endoftext|>)."""
    if chat[0][0] == "text":
        return chat[0][1] + "<|endoftext|>"
    return "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in chat)


if __name__ == "__main__":
    import sys
    for n in range(int(sys.argv[1]) if len(sys.argv) > 1 else 10):
        print(render(record(n)), end="\n----\n")
