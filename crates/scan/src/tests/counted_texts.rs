//! Texts of many kinds with their token counts by a real tokenizer: `o200k_base`, counted once with
//! tiktoken-rs 0.12.1, the last five kinds with gpt-tokenizer 2.9.0. Kept as numbers, so that no
//! test needs the vocabulary.

/// A text and its number of tokens.
pub(super) type Counted = (&'static str, u32);

/// Texts of one kind.
pub(super) struct Kind {
    pub(super) name: &'static str,
    pub(super) texts: &'static [Counted],
}

pub(super) const KINDS: &[Kind] = &[
    Kind {
        name: "english prose",
        texts: &[
            (
                "The harbour was quiet when the ferry came in. A few men in yellow jackets stood by the ropes, smoking and talking about the weather, and nobody looked up until the ramp hit the concrete with a dull sound. Then everyone moved at once.",
                49,
            ),
            (
                "Load balancing is the art of disappointing nobody. Each request wants the fastest machine, each machine wants a steady stream of work, and the operator wants to sleep at night. A good balancer finds a compromise that all three can live with for a while.",
                51,
            ),
            (
                "Please summarise the attached minutes in five sentences. Mention who agreed to do what and by when, leave out the discussion about the coffee machine, and point out anything that was postponed to the next meeting.",
                41,
            ),
            (
                "My grandmother kept bees for forty years and was stung exactly twice, both times by wasps. She used to say that fear has a smell, and that an animal which lives for six weeks has no patience with people who dither.",
                48,
            ),
            (
                "You are a careful assistant. Answer in the language of the question. When you are not sure, say so, and never invent a source. If the user asks for medical advice, remind them politely that you are not a physician.",
                47,
            ),
            (
                "In 1854 a physician drew a map of the deaths in one London parish and noticed that they clustered around a single water pump. The handle was removed a few days later, and the idea that disease could travel in water slowly began to be believed.",
                51,
            ),
        ],
    },
    Kind {
        name: "code",
        texts: &[
            (
                "fn merge(left: &[u32], right: &[u32]) -> Vec<u32> {\n    let mut merged = Vec::with_capacity(left.len() + right.len());\n    let (mut i, mut j) = (0, 0);\n    while i < left.len() && j < right.len() {\n        if left[i] <= right[j] {\n            merged.push(left[i]);\n            i += 1;\n        } else {\n            merged.push(right[j]);\n            j += 1;\n        }\n    }\n    merged.extend_from_slice(&left[i..]);\n    merged.extend_from_slice(&right[j..]);\n    merged\n}",
                132,
            ),
            (
                "import asyncio\nimport httpx\n\nasync def fetch_all(urls: list[str], limit: int = 8) -> dict[str, int]:\n    gate = asyncio.Semaphore(limit)\n\n    async def fetch(client: httpx.AsyncClient, url: str) -> tuple[str, int]:\n        async with gate:\n            response = await client.get(url, timeout=10)\n            return url, response.status_code\n\n    async with httpx.AsyncClient() as client:\n        return dict(await asyncio.gather(*(fetch(client, url) for url in urls)))",
                113,
            ),
            (
                "export function debounce<T extends unknown[]>(fn: (...args: T) => void, ms: number) {\n  let timer: ReturnType<typeof setTimeout> | undefined;\n  return (...args: T) => {\n    if (timer !== undefined) clearTimeout(timer);\n    timer = setTimeout(() => fn(...args), ms);\n  };\n}",
                71,
            ),
            (
                "SELECT customers.name, COUNT(orders.id) AS order_count, SUM(orders.total) AS revenue\nFROM customers\nLEFT JOIN orders ON orders.customer_id = customers.id AND orders.created_at >= '2025-01-01'\nWHERE customers.country IN ('DE', 'FR', 'PL')\nGROUP BY customers.id, customers.name\nHAVING SUM(orders.total) > 1000\nORDER BY revenue DESC\nLIMIT 25;",
                89,
            ),
            (
                "#!/usr/bin/env bash\nset -euo pipefail\n\nfor file in logs/*.gz; do\n  name=$(basename \"$file\" .gz)\n  zcat \"$file\" | grep -E 'ERROR|WARN' | awk '{print $1, $2, $NF}' > \"out/${name}.txt\"\n  printf '%s: %d lines\\n' \"$name\" \"$(wc -l < \"out/${name}.txt\")\"\ndone",
                95,
            ),
            (
                "#include <stdio.h>\n#include <stdlib.h>\n\ntypedef struct node { int value; struct node *next; } node_t;\n\nstatic node_t *reverse(node_t *head) {\n    node_t *previous = NULL;\n    while (head != NULL) {\n        node_t *next = head->next;\n        head->next = previous;\n        previous = head;\n        head = next;\n    }\n    return previous;\n}",
                87,
            ),
        ],
    },
    Kind {
        name: "json",
        texts: &[
            (
                "{\"id\":\"ord_7741\",\"customer\":{\"name\":\"Ada Brandt\",\"email\":\"ada@example.com\",\"tier\":\"gold\"},\"items\":[{\"sku\":\"KB-104\",\"quantity\":1,\"price\":89.9},{\"sku\":\"MS-220\",\"quantity\":2,\"price\":24.5}],\"total\":138.9,\"currency\":\"EUR\",\"paid\":true,\"notes\":null}",
                81,
            ),
            (
                "{\n  \"type\": \"object\",\n  \"properties\": {\n    \"city\": {\"type\": \"string\", \"description\": \"Name of the city\"},\n    \"unit\": {\"type\": \"string\", \"enum\": [\"celsius\", \"fahrenheit\"]},\n    \"days\": {\"type\": \"integer\", \"minimum\": 1, \"maximum\": 14}\n  },\n  \"required\": [\"city\"],\n  \"additionalProperties\": false\n}",
                93,
            ),
            (
                "[{\"timestamp\":\"2026-03-01T08:15:02Z\",\"level\":\"warn\",\"service\":\"billing\",\"message\":\"retrying after timeout\",\"attempt\":2,\"elapsed_ms\":1503},{\"timestamp\":\"2026-03-01T08:15:04Z\",\"level\":\"info\",\"service\":\"billing\",\"message\":\"charge accepted\",\"attempt\":3,\"elapsed_ms\":212}]",
                81,
            ),
            (
                "{\"version\":3,\"services\":{\"web\":{\"image\":\"nginx:1.27\",\"ports\":[\"80:80\",\"443:443\"],\"depends_on\":[\"api\"]},\"api\":{\"image\":\"registry.example.com/api:2.4.1\",\"environment\":{\"DATABASE_URL\":\"postgres://app:secret@db:5432/app\",\"LOG_LEVEL\":\"info\"}}}}",
                73,
            ),
            (
                "{\"usage\":{\"prompt_tokens\":1874,\"completion_tokens\":322,\"total_tokens\":2196},\"choices\":[{\"index\":0,\"finish_reason\":\"stop\",\"message\":{\"role\":\"assistant\",\"content\":\"Done.\"}}],\"model\":\"llama3:70b\",\"created\":1767225600}",
                60,
            ),
        ],
    },
    Kind {
        name: "markdown",
        texts: &[
            (
                "# Release notes\n\n## 2.3.0\n\n- **Added**: streaming answers for the batch API\n- **Fixed**: a crash when the configuration file was empty\n- **Changed**: `--workers` now defaults to the number of cores\n\nSee the [migration guide](docs/migration.md) before you upgrade.",
                70,
            ),
            (
                "| Region | Requests | p50 | p99 |\n|---|---:|---:|---:|\n| eu-west | 1,204,551 | 41 ms | 380 ms |\n| us-east | 2,780,019 | 38 ms | 411 ms |\n| ap-south | 433,870 | 77 ms | 902 ms |\n\nNumbers cover the last seven days.",
                86,
            ),
            (
                "1. Install the package with `pip install example`.\n2. Create a file called `settings.toml`:\n\n```toml\n[server]\nport = 8080\n```\n\n3. Start it: `example serve --config settings.toml`.\n\n> The first start takes a minute, because models are downloaded.",
                65,
            ),
            (
                "## Why another queue?\n\nBecause the ones we tried either **lost messages** on restart or needed *three* machines to run. Ours keeps everything in one file, fsyncs once per batch, and fits in 900 lines of code. It is not fast; it is boring, and that is the point.",
                65,
            ),
        ],
    },
    Kind {
        name: "german and french",
        texts: &[
            (
                "Der Zug nach Leipzig hatte zwanzig Minuten Verspätung, und auf dem Bahnsteig wurde es langsam kalt. Eine Frau mit einem großen Koffer fragte, ob der Anschluss in Halle noch zu erreichen sei, aber niemand konnte ihr eine Antwort geben.",
                52,
            ),
            (
                "Bitte fassen Sie den folgenden Vertrag in verständlicher Sprache zusammen. Nennen Sie insbesondere die Kündigungsfristen, die Haftungsbeschränkungen und alle Klauseln, die für den Auftraggeber nachteilig sein könnten.",
                46,
            ),
            (
                "Le marché ouvre à sept heures, mais les premiers clients arrivent bien avant. On discute du prix des tomates, de la pluie qui ne vient pas, et du maire qui a promis un nouveau toit pour la halle depuis déjà trois étés.",
                50,
            ),
            (
                "Rédige une réponse polie à ce client mécontent : présente nos excuses pour le retard de livraison, explique que le colis a été retrouvé, et propose-lui un bon de réduction de dix pour cent sur sa prochaine commande.",
                47,
            ),
        ],
    },
    Kind {
        name: "spanish and polish",
        texts: &[
            (
                "La biblioteca cierra a las nueve, pero el guardia siempre nos dejaba quedarnos un poco más. Decía que los libros duermen mejor cuando alguien los ha leído durante el día, y nosotros fingíamos creerle.",
                46,
            ),
            (
                "Explícame paso a paso cómo funciona un motor de cuatro tiempos, con palabras sencillas y sin fórmulas, como si se lo contaras a un niño de diez años que nunca ha visto el interior de un coche.",
                46,
            ),
            (
                "Proszę przygotować krótkie podsumowanie spotkania: kto był obecny, jakie decyzje podjęto oraz które zadania zostały przełożone na następny tydzień. Całość nie powinna być dłuższa niż pół strony.",
                55,
            ),
            (
                "Wieczorem zaczął padać śnieg i do rana przykrył całe miasto. Dzieci nie poszły do szkoły, tramwaje stanęły, a starszy pan z trzeciego piętra po raz pierwszy od lat wyciągnął z piwnicy narty.",
                67,
            ),
        ],
    },
    Kind {
        name: "cyrillic",
        texts: &[
            (
                "Поезд пришёл на станцию поздно вечером, когда все магазины уже были закрыты. На платформе стояли двое: пожилой мужчина с собакой и девушка, которая держала в руках табличку с чужой фамилией.",
                53,
            ),
            (
                "Объясни, пожалуйста, чем отличается процесс от потока в операционной системе. Приведи по одному примеру для каждого случая и скажи, когда какой подход лучше использовать на практике.",
                38,
            ),
            (
                "Напиши функцию, которая принимает список чисел и возвращает их медиану. Учти, что список может быть пустым, содержать повторяющиеся значения и быть очень большим, поэтому сортировать его целиком нежелательно.",
                47,
            ),
            (
                "Бабуся щоліта варила вишневе варення у великому мідному тазу. Ми сиділи поруч, відганяли ос і чекали, коли нам дадуть спробувати пінку, яка завжди була смачнішою за саме варення.",
                62,
            ),
            (
                "Подготовьте краткий отчёт о продажах за второй квартал: укажите общую выручку, три самых популярных товара, а также регионы, в которых показатели снизились по сравнению с прошлым годом.",
                46,
            ),
        ],
    },
    Kind {
        name: "chinese",
        texts: &[
            (
                "火车到站的时候天已经黑了，站台上只剩下几个人。一位老人牵着狗慢慢地走着，远处的灯光照在湿漉漉的地面上，空气里有一股雨后的味道。",
                58,
            ),
            (
                "请用简单的语言解释什么是负载均衡，并举一个日常生活中的例子。回答不要超过两百字，也不要使用专业术语，因为读者是第一次接触计算机的老年人。",
                48,
            ),
            (
                "根据会议记录，市场部将在下周五之前提交新的推广方案，预算不超过五十万元。技术部门负责评估系统的承载能力，并在月底前给出书面报告。",
                43,
            ),
            (
                "我奶奶养了四十年的蜜蜂，只被蜇过两次。她常说，害怕是有气味的，而一只只能活六个星期的小动物，对犹豫不决的人没有什么耐心。",
                52,
            ),
            (
                "帮我检查下面这封邮件有没有语法错误，语气要礼貌但不要太客气，最后加上一句感谢对方在百忙之中抽出时间的话。",
                40,
            ),
        ],
    },
    Kind {
        name: "japanese",
        texts: &[
            (
                "電車が駅に着いたのは夜遅くで、店はもう全部閉まっていた。ホームには犬を連れた老人と、知らない名前の札を持った若い女性だけが立っていた。",
                51,
            ),
            (
                "ロードバランサーとは何かを、小学生にもわかるように説明してください。専門用語は使わず、レストランの行列を例にして、三つの短い段落にまとめてください。",
                51,
            ),
            (
                "来週の金曜日までに見積書をお送りいただけますでしょうか。納期については多少の調整が可能ですが、予算の上限は変更できませんのでご了承ください。",
                43,
            ),
            (
                "祖母は四十年間ミツバチを飼っていましたが、刺されたのは二回だけでした。怖がる人には匂いがあるのだと、いつも笑いながら話してくれました。",
                52,
            ),
        ],
    },
    Kind {
        name: "korean",
        texts: &[
            (
                "기차가 역에 도착했을 때는 이미 늦은 밤이어서 가게들은 모두 문을 닫은 뒤였다. 승강장에는 개를 데리고 나온 노인과 낯선 이름이 적힌 종이를 든 젊은 여자만 서 있었다.",
                61,
            ),
            (
                "로드 밸런서가 무엇인지 초등학생도 이해할 수 있게 설명해 주세요. 어려운 용어는 쓰지 말고, 식당에서 줄을 서는 상황을 예로 들어 세 문단으로 정리해 주세요.",
                51,
            ),
            (
                "다음 주 금요일까지 견적서를 보내 주시면 감사하겠습니다. 납기는 어느 정도 조정할 수 있지만 예산의 상한은 변경하기 어렵다는 점을 양해해 주시기 바랍니다.",
                46,
            ),
            (
                "할머니는 사십 년 동안 꿀벌을 키우셨지만 쏘인 적은 두 번뿐이었다. 겁을 내는 사람에게는 냄새가 난다고 늘 웃으면서 말씀하셨다.",
                49,
            ),
        ],
    },
    Kind {
        name: "greek and hebrew",
        texts: &[
            (
                "Ο εξισορροπητής φορτίου στέλνει κάθε αίτημα σε έναν διακομιστή που μπορεί να το εξυπηρετήσει.",
                35,
            ),
            (
                "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα. Είναι προικισμένοι με λογική και συνείδηση, και οφείλουν να συμπεριφέρονται μεταξύ τους με πνεύμα αδελφοσύνης.",
                71,
            ),
            ("מאזן העומסים שולח כל בקשה לשרת שיכול לטפל בה ומנסה שוב כאשר המנוע נכשל.", 26),
            (
                "כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם. כולם חוננו בתבונה ובמצפון, לפיכך חובה עליהם לנהוג איש ברעהו ברוח של אחווה.",
                50,
            ),
        ],
    },
    Kind {
        name: "thai",
        texts: &[
            (
                "ระบบกระจายโหลดส่งคำขอแต่ละรายการไปยังเซิร์ฟเวอร์ที่สามารถให้บริการได้ และลองใหม่เมื่อเครื่องยนต์ล้มเหลว",
                56,
            ),
            (
                "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ ต่างมีเหตุผลและมโนธรรม และควรปฏิบัติต่อกันด้วยเจตนารมณ์แห่งภราดรภาพ",
                82,
            ),
            ("วันนี้อากาศดีมาก ฉันอยากไปเดินเล่นที่ตลาดกับเพื่อน แล้วกินก๋วยเตี๋ยวด้วยกัน", 42),
        ],
    },
    Kind {
        name: "languages of india",
        texts: &[
            (
                "लोड बैलेंसर प्रत्येक अनुरोध को उस सर्वर पर भेजता है जो उसे पूरा कर सकता है और इंजन विफल होने पर पुनः प्रयास करता है।",
                61,
            ),
            (
                "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है। उन्हें बुद्धि और अन्तरात्मा की देन प्राप्त है और परस्पर उन्हें भाईचारे के भाव से बर्ताव करना चाहिए।",
                99,
            ),
            ("आज मौसम बहुत अच्छा है, मैं अपने दोस्त के साथ बाजार जाना चाहता हूँ।", 37),
            (
                "লোড ব্যালেন্সার প্রতিটি অনুরোধ এমন একটি সার্ভারে পাঠায় যা এটি পরিবেশন করতে পারে এবং ইঞ্জিন ব্যর্থ হলে আবার চেষ্টা করে।",
                64,
            ),
            (
                "সমস্ত মানুষ স্বাধীনভাবে সমান মর্যাদা এবং অধিকার নিয়ে জন্মগ্রহণ করে। তাঁদের বিবেক এবং বুদ্ধি আছে; সুতরাং সকলেরই একে অপরের প্রতি ভ্রাতৃত্বসুলভ মনোভাব নিয়ে আচরণ করা উচিৎ।",
                92,
            ),
            ("சுமை சமநிலைப்படுத்தி ஒவ்வொரு கோரிக்கையையும் அதை வழங்கக்கூடிய சேவையகத்திற்கு அனுப்புகிறது.", 54),
            (
                "மனிதப் பிறவியினர் சகலரும் சுதந்திரமாகவே பிறக்கின்றனர்; அவர்கள் மதிப்பிலும், உரிமைகளிலும் சமமானவர்கள், அவர்கள் நியாயத்தையும் மனச்சாட்சியையும் இயற்பண்பாகப் பெற்றவர்கள்.",
                95,
            ),
            (
                "ప్రతిపత్తిస్వత్వముల విషయమున మానవులెల్లరును జన్మతః స్వతంత్రులును సమానులును నగుదురు. వారు వివేదన-అంతఃకరణ సంపన్నులగుటచే పరస్పరము భ్రాతృభావముతో వర్తింపవలయును.",
                98,
            ),
            ("లోడ్ బ్యాలెన్సర్ ప్రతి అభ్యర్థనను దానిని నిర్వహించగల సర్వర్‌కు పంపుతుంది.", 48),
            (
                "પ્રતિષ્ઠા અને અધિકારોની દૃષ્ટિએ સર્વ માનવો જન્મથી સ્વતંત્ર અને સમાન હોય છે. તેમનામાં વિચારશક્તિ અને અંતઃકરણ હોય છે અને તેમણે પરસ્પર બંધુત્વની ભાવનાથી વર્તવું જોઇએ.",
                101,
            ),
            (
                "മനുഷ്യരെല്ലാവരും തുല്യാവകാശങ്ങളോടും അന്തസ്സോടും സ്വാതന്ത്ര്യത്തോടുംകൂടി ജനിച്ചവരാണ്. അന്യോന്യം ഭ്രാതൃഭാവത്തോടെ പെരുമാറുവാനാണ് മനുഷ്യന് വിവേകബുദ്ധിയും മനസ്സാക്ഷിയും സിദ്ധമായിരിക്കുന്നത്.",
                109,
            ),
        ],
    },
    Kind {
        name: "amharic",
        texts: &[
            ("የጭነት ሚዛን እያንዳንዱን ጥያቄ ሊያገለግለው ወደሚችል አገልጋይ ይልካል። ሞተሩም ሲወድቅ እንደገና ይሞክራል።", 127),
            (
                "የሰው ልጅ ሁሉ ሲወለድ ነጻና በክብርና በመብትም እኩልነት ያለው ነው። የተፈጥሮ ማስተዋልና ሕሊና ስላለው አንዱ ሌላውን በወንድማማችነት መንፈስ መመልከት ይገባዋል።",
                187,
            ),
        ],
    },
    Kind {
        name: "emoji",
        texts: &[
            ("✅ done 🚀 ⚠️ warn ❌ fail 🔥", 13),
            ("Deploy finished 🚀🎉 — tests ✅✅❌, coverage 📈, thanks 🙏 @team 👍🏽🔥", 26),
        ],
    },
];
